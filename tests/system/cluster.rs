//! A router over etcd with two workers in each pool, any of which can be killed, stopped and started again
//! while requests run.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use baton_proto::v1::WorkerLoad;

use crate::client::{Client, WorkerClient, is_idle};
use crate::etcd_server::EtcdServer;
use crate::process::Process;
use crate::service::Roles;

/// Name under which the router is hit.
pub(crate) const ROUTER: &str = "router";
/// Name under which etcd is hit.
pub(crate) const ETCD: &str = "etcd";
/// A worker that does not answer for so long is looked at again later.
const LOOK: Duration = Duration::from_millis(500);

/// What can happen to a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// SIGKILL; another starts when its time has come.
    Kill,
    /// SIGSTOP, and SIGCONT when its time has come.
    Stop,
    /// SIGKILL, and a new start at the same address at once.
    Restart,
}

/// One process of the cluster.
struct Member {
    process: Process,
    flags: Vec<String>,
    /// What must be undone before it answers again.
    hit: Option<Fault>,
}

/// All of them. Workers end before their router, and etcd last.
pub(crate) struct Cluster {
    pub(crate) client: Client,
    clients: BTreeMap<&'static str, WorkerClient>,
    workers: BTreeMap<&'static str, Member>,
    router: Member,
    etcd: EtcdServer,
    etcd_hit: Option<Fault>,
    roles: Roles,
}

impl Cluster {
    /// Starts all six. The flags go to the workers of their role.
    pub(crate) async fn start(model: &Path, prefill: &[&str], decode: &[&str]) -> Self {
        let roles = Roles::new(model);
        let etcd = EtcdServer::start(&[]);
        let membership = format!("etcd:{}", etcd.endpoint());
        let router = roles.router(&["--membership", &membership]);
        let address = router.address().to_owned();
        let flags = ["--membership", &membership, "--listen", &address];
        let mut cluster = Self {
            client: Client::connect(&address).await,
            clients: BTreeMap::new(),
            workers: BTreeMap::new(),
            router: Member {
                process: router,
                flags: flags.map(String::from).to_vec(),
                hit: None,
            },
            etcd,
            etcd_hit: None,
            roles,
        };
        for (role, flags) in [("decode", decode), ("prefill", prefill)] {
            for index in 0..2 {
                let name = names(role)[index];
                let own = ["--membership", &membership, "--worker-id", name];
                let own = [&own[..], &["--etcd-lease-s", "1", "--threads", "1"]].concat();
                let flags = [&own[..], flags].concat();
                let flags: Vec<String> = flags.iter().map(ToString::to_string).collect();
                let process = cluster.launch(name, &flags, &[]);
                let hit = None;
                let member = Member {
                    process,
                    flags,
                    hit,
                };
                cluster.workers.insert(name, member);
                cluster.meet(name).await;
            }
        }
        cluster.client.until_ready(4).await;
        cluster
    }

    /// Names of the workers.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> + use<'_> {
        self.workers.keys().copied()
    }

    /// What the workers that were not hit have now.
    pub(crate) async fn loads(&self) -> Vec<(&'static str, WorkerLoad)> {
        let up = self.clients.iter();
        let up = up.filter(|(name, _)| self.workers[*name].hit.is_none());
        let asked =
            up.map(|(name, client)| async move { Some((*name, client.try_load(LOOK).await?)) });
        let answers = futures::future::join_all(asked).await;
        answers.into_iter().flatten().collect()
    }

    /// Makes the fault happen now.
    pub(crate) async fn hit(&mut self, victim: &'static str, fault: Fault) {
        if victim == ETCD {
            return self.hit_etcd(fault);
        }
        let member = self.member(victim);
        member.hit = Some(fault);
        match fault {
            Fault::Stop => member.process.signal("STOP"),
            Fault::Kill | Fault::Restart => {
                member.process.signal("KILL");
                member.process.wait();
            }
        }
        if fault == Fault::Restart {
            self.mend(victim).await;
        }
    }

    fn hit_etcd(&mut self, fault: Fault) {
        match fault {
            Fault::Kill => self.etcd.kill(),
            Fault::Stop => self.etcd.signal("STOP"),
            Fault::Restart => return tokio::task::block_in_place(|| self.etcd.start_again(true)),
        }
        self.etcd_hit = Some(fault);
    }

    fn mend_etcd(&mut self) {
        match self.etcd_hit.take() {
            Some(Fault::Stop) => self.etcd.signal("CONT"),
            Some(_) => tokio::task::block_in_place(|| self.etcd.start_again(true)),
            None => {}
        }
    }

    /// Undoes what was done to it: it goes on, or a new one has its place.
    pub(crate) async fn mend(&mut self, victim: &'static str) {
        let Some(fault) = self.member(victim).hit else {
            return;
        };
        match fault {
            Fault::Stop => self.member(victim).process.signal("CONT"),
            Fault::Kill | Fault::Restart => {
                let flags = self.member(victim).flags.clone();
                let address = self.member(victim).process.address().to_owned();
                let same = ["--listen", &address];
                let again = (fault == Fault::Restart).then_some(&same[..]);
                self.member(victim).process =
                    self.launch(victim, &flags, again.unwrap_or_default());
            }
        }
        self.member(victim).hit = None;
        self.meet(victim).await;
    }

    /// Undoes everything, then waits until nobody holds anything and checks every ledger.
    pub(crate) async fn recover(&mut self) {
        // Workers are ready only once a router has found them.
        self.mend_etcd();
        self.mend(ROUTER).await;
        for victim in self.names().collect::<Vec<_>>() {
            self.mend(victim).await;
        }
        self.client.until_ready(4).await;
        self.workers_idle(Duration::from_mins(1)).await;
        self.client.assert_idle().await;
    }

    /// Waits, no longer than `limit`, until no worker holds anything; their ledgers must add up meanwhile.
    pub(crate) async fn workers_idle(&self, limit: Duration) {
        for (name, client) in &self.clients {
            if self.workers[name].hit.is_none() {
                client.within(limit, "idle", is_idle).await;
            }
        }
    }

    fn member(&mut self, name: &str) -> &mut Member {
        if name == ROUTER {
            return &mut self.router;
        }
        self.workers.get_mut(name).expect("a worker of the cluster")
    }

    fn launch(&self, name: &str, flags: &[String], more: &[&str]) -> Process {
        let mut all: Vec<&str> = flags.iter().map(String::as_str).collect();
        let role = name.split('-').next().expect("a role");
        // Starting blocks until the process is ready.
        tokio::task::block_in_place(|| {
            if role == ROUTER {
                return self.roles.router(&all);
            }
            all.extend(more);
            self.roles.role(role, &all)
        })
    }

    async fn meet(&mut self, name: &'static str) {
        if name == ROUTER {
            self.client = Client::connect(self.router.process.address()).await;
        } else {
            let client = WorkerClient::connect(self.workers[name].process.address()).await;
            self.clients.insert(name, client);
        }
    }
}

fn names(role: &str) -> [&'static str; 2] {
    match role {
        "prefill" => ["prefill-0", "prefill-1"],
        _ => ["decode-0", "decode-1"],
    }
}
