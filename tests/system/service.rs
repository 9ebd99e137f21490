//! A running service: `baton up`, or its roles one by one.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::client::{Client, WorkerClient};
use crate::process::{Process, Turn};

/// How to start `baton up`.
#[derive(Clone)]
pub(crate) struct Setup {
    model: PathBuf,
    flags: Vec<String>,
    program: PathBuf,
}

impl Setup {
    /// With the model at `model`.
    pub(crate) fn new(model: &Path) -> Self {
        Self {
            model: model.to_owned(),
            flags: Vec::new(),
            program: env!("CARGO_BIN_EXE_baton").into(),
        }
    }

    /// Runs this file instead of the one that was built.
    pub(crate) fn program(mut self, program: &Path) -> Self {
        program.clone_into(&mut self.program);
        self
    }

    /// One more flag of `baton up`.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "numbers and names read better bare"
    )]
    pub(crate) fn flag(mut self, name: &str, value: impl ToString) -> Self {
        self.flags.extend([name.to_owned(), value.to_string()]);
        self
    }

    /// Starts it and waits until it is ready.
    pub(crate) async fn start(&self) -> Service {
        let turn = Turn::take();
        let model = self.model.display().to_string();
        let mut arguments = ["up", "--listen", "127.0.0.1:0", "--model", &model]
            .map(String::from)
            .to_vec();
        for port in ["--http-listen", "--metrics-listen"] {
            arguments.extend([port, "127.0.0.1:0"].map(String::from));
        }
        arguments.extend_from_slice(&self.flags);
        let process = Process::started(Command::new(&self.program).args(&arguments));
        let client = Client::connect(process.address()).await;
        Service {
            client,
            process,
            _turn: turn,
        }
    }
}

/// A running `baton up`; dropping it ends it.
pub(crate) struct Service {
    client: Client,
    pub(crate) process: Process,
    _turn: Turn,
}

impl Deref for Service {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

/// Roles started one by one, so that each can be killed, stopped and started again. What was started last
/// ends first: workers before their router.
pub(crate) struct Roles {
    model: PathBuf,
    environment: BTreeMap<String, String>,
    _turn: Turn,
}

impl Roles {
    /// With the model at `model`.
    pub(crate) fn new(model: &Path) -> Self {
        Self {
            model: model.to_owned(),
            environment: BTreeMap::new(),
            _turn: Turn::take(),
        }
    }

    /// Sets a variable of all that is started from here on.
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.environment.insert(name.to_owned(), value.to_owned());
    }

    /// Starts a router. Everything is split unless the flags say otherwise.
    pub(crate) fn router(&self, flags: &[&str]) -> Process {
        let mut all = vec!["--listen", "127.0.0.1:0", "--local-prefill-tokens", "0"];
        override_flags(&mut all, flags);
        self.role("router", &all)
    }

    /// Starts a worker and registers it.
    pub(crate) fn worker(&self, role: &str, router: &Process, flags: &[&str]) -> Process {
        let id = format!("{role}-0");
        let mut all = vec!["--router", router.address(), "--worker-id", &id];
        all.extend(["--listen", "127.0.0.1:0", "--threads", "1"]);
        override_flags(&mut all, flags);
        self.role(role, &all)
    }

    /// Starts any role with just these flags.
    pub(crate) fn role(&self, role: &str, flags: &[&str]) -> Process {
        let model = self.model.display().to_string();
        let arguments: Vec<String> = [role, "--model", &model]
            .iter()
            .chain(flags)
            .map(ToString::to_string)
            .collect();
        Process::start_with(&arguments, &self.environment)
    }
}

/// A flag may be given once only.
fn override_flags<'a>(all: &mut Vec<&'a str>, flags: &[&'a str]) {
    for pair in flags.chunks(2) {
        match all.iter().position(|flag| *flag == pair[0]) {
            Some(place) => all[place + 1] = pair[1],
            None => all.extend(pair),
        }
    }
}

/// A router, a prefill worker and a decode worker, and clients of each. Fields end in this order.
pub(crate) struct Trio {
    pub(crate) client: Client,
    pub(crate) prefill: Process,
    pub(crate) decode: Process,
    pub(crate) router: Process,
    pub(crate) roles: Roles,
}

impl Trio {
    /// Starts all three; the flags go to both workers.
    pub(crate) async fn start(model: &Path, flags: &[&str]) -> Self {
        Self::start_with(model, &[], flags).await
    }

    /// The same, with flags for the router.
    pub(crate) async fn start_with(model: &Path, router_flags: &[&str], flags: &[&str]) -> Self {
        let roles = Roles::new(model);
        let router = roles.router(router_flags);
        let decode = roles.worker("decode", &router, flags);
        let prefill = roles.worker("prefill", &router, flags);
        Self {
            client: Client::connect(router.address()).await,
            prefill,
            decode,
            router,
            roles,
        }
    }

    /// Clients of the prefill and the decode worker.
    pub(crate) async fn workers(&self) -> (WorkerClient, WorkerClient) {
        (
            WorkerClient::connect(self.prefill.address()).await,
            WorkerClient::connect(self.decode.address()).await,
        )
    }
}
