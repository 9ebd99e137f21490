//! The Unix socket of shm: made where it can be, and cleared away after those who could not do it.

use std::path::Path;

use baton_proto::domain::Transport;

use super::support::*;
use crate::{Receiver, TransferError, TransportChoice};

async fn bind(transports: TransportChoice, folder: &Path) -> Result<Receiver, TransferError> {
    let memory = region(&layout(16));
    Receiver::bind(
        identity(&layout(16), 100),
        layout(16),
        memory.clone(),
        Some(memory),
        receiver_options(transports, folder),
    )
    .await
}

fn offered(receiver: &Receiver) -> Vec<Transport> {
    let endpoints = receiver.endpoints().iter();
    endpoints.map(|endpoint| endpoint.transport).collect()
}

#[tokio::test]
async fn sockets_of_killed_receivers_are_swept_and_nothing_else() {
    let folder = tempfile::tempdir().expect("folder");
    let at = |name: &str| folder.path().join(name);
    // std leaves the file when a listener is dropped, as a killed process does.
    let dead = ["kv-00000000000000aa.sock", "kv-ffffffffffffffff.sock"];
    let strangers = ["kv-1.sock", "kv-00000000000000aa.sock.old", "other.sock"];
    for name in dead.iter().chain(&strangers) {
        drop(std::os::unix::net::UnixListener::bind(at(name)).expect("bind"));
    }
    let plain = "kv-00000000000000bb.sock";
    std::fs::write(at(plain), b"no socket").expect("write");
    let living = bind(TransportChoice::Shm, folder.path())
        .await
        .expect("bind");
    let next = bind(TransportChoice::Shm, folder.path())
        .await
        .expect("bind");
    for name in dead {
        assert!(!at(name).exists(), "{name} is still there");
    }
    for name in strangers.iter().chain([&plain]) {
        assert!(at(name).exists(), "{name} is another's");
    }
    for receiver in [&living, &next] {
        let address = &receiver.endpoints()[0].address;
        assert!(Path::new(address).exists(), "{address} is in use");
    }
    // Looking was no handshake.
    let abandoned = counter(&living.counters().snapshot(), "handshakes_abandoned");
    assert_eq!(abandoned, 0);
    drop((living, next));
    let left = std::fs::read_dir(folder.path()).expect("folder").count();
    assert_eq!(left, strangers.len() + 1);
}

#[tokio::test]
async fn auto_offers_tcp_alone_where_no_socket_can_be_made() {
    let folder = tempfile::tempdir().expect("folder");
    let file = folder.path().join("file");
    std::fs::write(&file, b"").expect("write");
    let too_long = folder.path().join("x".repeat(200));
    for impossible in [too_long, file.join("below")] {
        let auto = bind(TransportChoice::Auto, &impossible)
            .await
            .expect("auto");
        assert_eq!(offered(&auto), [Transport::Tcp]);
        let refused = bind(TransportChoice::Shm, &impossible).await;
        let error = refused.expect_err("shm alone needs its socket");
        assert!(matches!(error, TransferError::Bind { .. }), "{error}");
    }
    let both = bind(TransportChoice::Auto, folder.path())
        .await
        .expect("auto");
    assert_eq!(offered(&both), [Transport::Shm, Transport::Tcp]);
}
