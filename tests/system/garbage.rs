//! Garbage on every port and socket: nobody dies, and what runs meanwhile gets its exact tokens.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use baton_model_file::fixtures::Random;

use crate::models::{endless, tiny_model, tiny_prompt, with};
use crate::process::{listening_paths, listening_ports};
use crate::service::Setup;

/// Where garbage goes.
enum Door {
    Port(u16),
    Path(PathBuf),
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_on_every_port_and_socket_harms_nobody() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = Setup::new(&tiny_model(folder.path()))
        .flag("--local-prefill-tokens", 64)
        .start()
        .await;
    let router = service.status().await.router.expect("router").pid;
    let mut pids = service.pids().await;
    pids.insert("router".into(), router);

    // Split and local, long and short, greedy and sampled.
    let requests = [(4, 200), (5, 30), (6, 700)].map(|(seed, length)| {
        with(endless(tiny_prompt(seed, length), 400), |sampling| {
            sampling.temperature = Some(if seed == 5 { 0.9 } else { 0.0 });
            sampling.seed = Some(seed);
        })
    });
    let mut expected = Vec::new();
    for request in &requests {
        let answer = service.generate(request.clone()).await;
        expected.push(answer.expect("undisturbed").essence());
    }

    let mut doors = Vec::new();
    for pid in pids.values() {
        doors.extend(listening_ports(*pid).into_iter().map(Door::Port));
    }
    let sockets = listening_paths(pids["decode-0"]);
    assert!(
        !sockets.is_empty(),
        "shared memory is offered over a socket"
    );
    doors.extend(sockets.into_iter().map(Door::Path));
    println!("{} doors", doors.len());
    let throwing = tokio::task::spawn_blocking(move || throw(&doors));
    let mut rounds = 0;
    // The last round begins while garbage still comes or right after; the first while it comes.
    while rounds == 0 || !throwing.is_finished() {
        let running = requests
            .iter()
            .map(|request| service.generate(request.clone()));
        let answers = futures::future::join_all(running).await;
        for (answer, expected) in answers.into_iter().zip(&expected) {
            assert_eq!(answer.expect("undisturbed").essence(), *expected);
        }
        rounds += 1;
    }
    throwing.await.expect("throwing does not fail");
    println!("{rounds} rounds of requests meanwhile");

    let mut after = service.pids().await;
    after.insert(
        "router".into(),
        service.status().await.router.expect("router").pid,
    );
    assert_eq!(after, pids, "nobody died");
    service.assert_idle().await;
}

fn throw(doors: &[Door]) {
    let seed = 4242;
    println!("seed {seed}");
    let mut random = Random::new(seed);
    for round in 0..40 {
        for door in doors {
            let mut bytes: Vec<u8> = (0..random.below(5000))
                .map(|_| random.bits() as u8)
                .collect();
            // Every fourth begins like HTTP/2, so that garbage reaches what lies behind.
            if round % 4 == 0 {
                bytes.splice(0..0, *b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
            }
            match door {
                Door::Port(port) => {
                    if let Ok(stream) = TcpStream::connect(("127.0.0.1", *port)) {
                        let _ = stream.set_read_timeout(Some(Duration::from_millis(10)));
                        exchange(stream, &bytes);
                    }
                }
                Door::Path(path) => {
                    if let Ok(stream) = UnixStream::connect(path) {
                        let _ = stream.set_read_timeout(Some(Duration::from_millis(10)));
                        exchange(stream, &bytes);
                    }
                }
            }
        }
    }
}

/// The other side may close at any point.
fn exchange(mut stream: impl Read + Write, bytes: &[u8]) {
    let _ = stream.write_all(bytes);
    let _ = stream.read(&mut [0; 64]);
}
