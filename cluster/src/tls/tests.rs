//! Handshakes over memory: who is let in, who is told why not, and what changes when files do.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{Plane, Shown, Strangers, Tls, TlsFiles};

/// A CA and the folder of what it signs.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: TempDir,
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ca.pem"), issuer.pem()).unwrap();
        Self { issuer, folder }
    }

    fn ca(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    fn sign(&self, name: &str, hosts: &[&str]) -> (PathBuf, PathBuf) {
        let hosts: Vec<String> = hosts.iter().map(ToString::to_string).collect();
        let key = KeyPair::generate().unwrap();
        let signed = CertificateParams::new(hosts)
            .unwrap()
            .signed_by(&key, &self.issuer)
            .unwrap();
        let path = |end: &str| self.folder.path().join(format!("{name}.{end}"));
        std::fs::write(path("crt"), signed.pem()).unwrap();
        std::fs::write(path("key"), key.serialize_pem()).unwrap();
        (path("crt"), path("key"))
    }

    /// A process with a certificate of this CA that trusts it.
    fn process(&self, name: &str, hosts: &[&str]) -> TlsFiles {
        let (cert, key) = self.sign(name, hosts);
        TlsFiles {
            cert: Some(cert),
            key: Some(key),
            ca: Some(self.ca()),
            ..TlsFiles::default()
        }
    }
}

const HOSTS: &[&str] = &["worker.example", "127.0.0.1", "::1"];

/// A handshake and one word each way: what each side got.
async fn meet(
    client: &Tls,
    server: &Tls,
    host: &str,
    strangers: Strangers,
) -> (io::Result<()>, io::Result<Shown>) {
    let (near, far) = tokio::io::duplex(1 << 16);
    let client = async {
        let mut stream = client.connect(Plane::Calls, host, near).await?;
        stream.write_all(b"ping").await?;
        stream.flush().await?;
        let mut heard = [0; 4];
        stream.read_exact(&mut heard).await?;
        assert_eq!(&heard, b"pong");
        Ok(())
    };
    let server = async {
        let (mut stream, shown) = server.accept(Plane::Calls, strangers, far).await?;
        let mut heard = [0; 4];
        stream.read_exact(&mut heard).await?;
        assert_eq!(&heard, b"ping");
        stream.write_all(b"pong").await?;
        stream.flush().await?;
        Ok(shown)
    };
    let both = async { tokio::join!(client, server) };
    tokio::time::timeout(Duration::from_secs(10), both)
        .await
        .expect("no handshake hangs")
}

#[tokio::test]
async fn peers_know_each_other_by_name_and_address() {
    let own = Authority::new("own");
    let [a, b] = ["a", "b"].map(|name| Tls::load(own.process(name, HOSTS)).unwrap());
    for host in ["worker.example", "127.0.0.1", "[::1]"] {
        let (client, server) = meet(&a, &b, host, Strangers::Refused).await;
        client.unwrap();
        let shown = server.unwrap();
        assert!(shown.peer && !shown.client, "{shown:?}");
    }
    let (client, server) = meet(&a, &b, "other.example", Strangers::Refused).await;
    let error = client.unwrap_err().to_string();
    assert!(
        error.contains("other.example") && error.contains("worker.example"),
        "{error}"
    );
    assert!(server.is_err());
    // A fixed name stands in for the host.
    let named = TlsFiles {
        name: Some("worker.example".into()),
        ..own.process("c", HOSTS)
    };
    let named = Tls::load(named).unwrap();
    let (client, _) = meet(&named, &b, "10.9.8.7", Strangers::Refused).await;
    client.unwrap();
}

#[tokio::test]
async fn another_ca_is_refused_by_either_side_in_words() {
    let (own, other) = (Authority::new("own"), Authority::new("other"));
    let server = Tls::load(own.process("server", HOSTS)).unwrap();
    let trusts = |files: TlsFiles, ca: &Authority| TlsFiles {
        ca: Some(ca.ca()),
        ..files
    };
    // The client does not know the server's CA.
    let client = Tls::load(other.process("client", HOSTS)).unwrap();
    let (client, refused) = meet(&client, &server, HOSTS[0], Strangers::Refused).await;
    let error = client.unwrap_err().to_string();
    assert!(
        error.contains("not signed by a CA that is trusted here"),
        "{error}"
    );
    let error = refused.unwrap_err().to_string();
    assert!(error.contains("UnknownCA"), "{error}");
    // The server does not know the client's.
    let client = Tls::load(trusts(other.process("client", HOSTS), &own)).unwrap();
    let (client, refused) = meet(&client, &server, HOSTS[0], Strangers::Admitted).await;
    let error = client.unwrap_err().to_string();
    assert!(error.contains("refuses this side's certificate"), "{error}");
    let error = refused.unwrap_err().to_string();
    assert!(
        error.contains("not signed by a CA that is trusted here"),
        "{error}"
    );
    // The client has none.
    let bare = TlsFiles {
        ca: Some(own.ca()),
        ..TlsFiles::default()
    };
    let bare = Tls::load(bare).unwrap();
    let (client, refused) = meet(&bare, &server, HOSTS[0], Strangers::Refused).await;
    let error = client.unwrap_err().to_string();
    assert!(error.contains("CertificateRequired"), "{error}");
    let error = refused.unwrap_err().to_string();
    assert!(error.contains("shows no certificate"), "{error}");
    let (client, admitted) = meet(&bare, &server, HOSTS[0], Strangers::Admitted).await;
    client.unwrap();
    assert_eq!(admitted.unwrap(), Shown::default());
}

#[tokio::test]
async fn clients_and_peers_are_told_apart_by_their_ca() {
    let (peers, clients) = (Authority::new("peers"), Authority::new("clients"));
    let server = TlsFiles {
        client_ca: Some(clients.ca()),
        ..peers.process("server", HOSTS)
    };
    let server = Tls::load(server).unwrap();
    let client = TlsFiles {
        ca: Some(peers.ca()),
        ..clients.process("client", HOSTS)
    };
    for (files, shown) in [
        (
            client,
            Shown {
                peer: false,
                client: true,
            },
        ),
        (
            peers.process("peer", HOSTS),
            Shown {
                peer: true,
                client: false,
            },
        ),
    ] {
        let tls = Tls::load(files).unwrap();
        let (_, server) = meet(&tls, &server, HOSTS[0], Strangers::Admitted).await;
        assert_eq!(server.unwrap(), shown);
    }
}

#[tokio::test]
async fn who_speaks_no_tls_is_told_and_nothing_hangs() {
    let own = Authority::new("own");
    let tls = Tls::load(own.process("a", HOSTS)).unwrap();
    // A server that speaks something else, and one that hangs up.
    for answer in [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], b""] {
        let (near, mut far) = tokio::io::duplex(1 << 16);
        far.write_all(answer).await.unwrap();
        far.shutdown().await.unwrap();
        let opened = tls.connect(Plane::Calls, HOSTS[0], near);
        let opened = tokio::time::timeout(Duration::from_secs(10), opened).await;
        let error = opened.expect("no hang").err().expect("refused").to_string();
        assert!(error.contains("not speak TLS"), "{error}");
    }
    // A client on another plane.
    let (near, far) = tokio::io::duplex(1 << 16);
    let (client, server) = tokio::join!(
        tls.connect(Plane::Pages, HOSTS[0], near),
        tls.accept(Plane::Calls, Strangers::Refused, far)
    );
    assert!(client.is_err() && server.is_err(), "planes do not mix");
}

#[tokio::test]
async fn new_files_are_used_and_broken_ones_are_not() {
    let own = Authority::new("own");
    let files = own.process("server", &["old.example"]);
    let cert = files.cert.clone().unwrap();
    let server = Tls::load(files).unwrap();
    let client = Tls::load(own.process("client", HOSTS)).unwrap();
    let served = async |host: &str| {
        meet(&client, &server, host, Strangers::Refused)
            .await
            .0
            .is_ok()
    };
    assert!(served("old.example").await);
    // Looking is what happens every second; here it happens when it is wanted.
    let used = server.inner.files.read().unwrap();
    own.sign("server", &["new.example"]);
    let used = server
        .inner
        .look(&used)
        .unwrap()
        .expect("they have changed");
    assert!(served("new.example").await);
    assert!(!served("old.example").await);
    assert!(
        server.inner.look(&used).unwrap().is_none(),
        "nothing has changed"
    );
    std::fs::write(&cert, b"garbage").unwrap();
    assert!(server.inner.look(&used).is_err());
    std::fs::remove_file(&cert).unwrap();
    assert!(server.inner.look(&used).is_err());
    assert!(served("new.example").await);
    own.sign("server", &["newest.example"]);
    assert!(server.inner.look(&used).unwrap().is_some());
    assert!(served("newest.example").await);
}

#[tokio::test]
async fn what_cannot_be_used_is_refused_by_file() {
    let own = Authority::new("own");
    let good = own.process("a", HOSTS);
    let (_, other_key) = own.sign("b", HOSTS);
    let write = |name: &str, text: &[u8]| {
        let path = own.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        Some(path)
    };
    let wrong = [
        (
            TlsFiles {
                key: Some(other_key),
                ..good.clone()
            },
            "b.key",
            "does not fit",
        ),
        (
            TlsFiles {
                cert: write("empty", b""),
                ..good.clone()
            },
            "empty",
            "no PEM certificate",
        ),
        (
            TlsFiles {
                key: write("none", b"text"),
                ..good.clone()
            },
            "none",
            "no PEM private key",
        ),
        (
            TlsFiles {
                ca: write("big", &vec![b'x'; 2 << 20]),
                ..good.clone()
            },
            "big",
            "larger than",
        ),
        (
            TlsFiles {
                ca: Some(own.folder.path().to_owned()),
                ..good.clone()
            },
            "",
            "not a regular file",
        ),
        (
            TlsFiles {
                client_ca: Some("/missing".into()),
                ..good.clone()
            },
            "/missing",
            "No such file",
        ),
        (
            TlsFiles {
                name: Some("no name".into()),
                ..good
            },
            "no name",
            "neither a DNS name",
        ),
    ];
    for (files, what, detail) in wrong {
        let error = Tls::load(files).unwrap_err().to_string();
        assert!(error.contains(what) && error.contains(detail), "{error}");
    }
}
