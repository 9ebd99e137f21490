//! Several routers side by side over one list of workers.

use crate::client::Client;
use crate::models::{endless, tiny_model, tiny_prompt};
use crate::process::{Process, baton};
use crate::service::Roles;

#[tokio::test(flavor = "multi_thread")]
async fn two_routers_over_one_list_serve_and_see_drains() {
    let folder = tempfile::tempdir().expect("a folder");
    let roles = Roles::new(&tiny_model(folder.path()));
    let list = folder.path().join("workers.toml");
    let membership = format!("static:{}", list.display());
    // One word for all: the workers are told of the list, too, which need not be there yet.
    let worker = |role: &str, id: &str| {
        let flags = ["--membership", &membership, "--worker-id", id];
        roles.role(role, &[&flags[..], &["--threads", "1"]].concat())
    };
    let workers = [
        worker("decode", "decode-0"),
        worker("decode", "decode-1"),
        worker("prefill", "prefill-0"),
    ];
    let addresses: Vec<_> = workers.iter().map(Process::address).collect();
    std::fs::write(&list, format!("workers = {addresses:?}\n")).expect("writable");
    let routers = [(); 2].map(|()| roles.router(&["--membership", &membership]));
    let [one, other] = [
        Client::connect(routers[0].address()).await,
        Client::connect(routers[1].address()).await,
    ];
    one.until_ready(3).await;
    other.until_ready(3).await;
    let request = endless(tiny_prompt(1, 200), 8);
    let expected = one.generate(request.clone()).await.expect("an answer");
    assert_eq!(expected.workers().0, "prefill-0");
    let both: Vec<_> = (0..16)
        .map(|number| {
            let client = [&one, &other][number % 2].clone();
            let request = request.clone();
            tokio::spawn(async move { client.generate(request).await })
        })
        .collect();
    for answer in both {
        let answer = answer.await.expect("no panic").expect("an answer");
        assert_eq!(answer.choices, expected.choices);
    }
    let drained = baton(&["drain", "decode-0", "--connect", &other.address]);
    assert_eq!(drained.code, Some(0), "{drained:?}");
    for client in [&one, &other] {
        client.until_ready(2).await;
        for _ in 0..4 {
            let answer = client.generate(request.clone()).await.expect("an answer");
            assert_eq!(answer.workers().1, "decode-1");
            assert_eq!(answer.choices, expected.choices);
        }
        client.assert_idle().await;
    }
}
