//! A real etcd, real sockets, workers that answer and nothing else. Every wait is bounded.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use baton_proto::domain::{WorkerInfo, WorkerRole};
use etcd_client::{AlarmAction, AlarmType, Client, GetOptions};

use super::record;
use crate::tests::{Process, bind, has, info, serve_worker, serve_workers, silent_proxy};
use crate::{Dialer, EtcdOptions, EtcdPassword, EtcdRegistration, MemberTable, Membership};

#[path = "../../../tests/system/etcd_server.rs"]
mod etcd_server;

use etcd_server::EtcdServer;

/// The shortest lease.
const LEASE: Duration = Duration::from_secs(1);
/// Bound on every wait for a state that must come.
const PATIENCE: Duration = Duration::from_mins(1);

async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future)
        .await
        .unwrap_or_else(|_| panic!("not within {PATIENCE:?}: {what}"))
}

async fn client(etcd: &EtcdServer) -> Client {
    Client::connect([etcd.endpoint()], None).await.unwrap()
}

async fn options(endpoints: &str) -> EtcdOptions {
    let options = EtcdOptions::new(endpoints, "/test/baton").unwrap();
    options.validate().await.unwrap()
}

fn membership_over(options: EtcdOptions) -> Membership {
    Membership::etcd(options, &Dialer::plain(), Arc::new(|_| Vec::new()))
}

async fn until(membership: &Membership, what: &str, wanted: impl Fn(&MemberTable) -> bool) {
    let mut table = membership.table();
    soon(what, table.wait_for(|table| wanted(table)))
        .await
        .unwrap();
}

async fn until_counter(membership: &Membership, name: &str, wanted: impl Fn(u64) -> bool) {
    soon(name, async {
        while !wanted(counter(membership, name)) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

fn counter(membership: &Membership, name: &str) -> u64 {
    let counters = membership.counters();
    let found = counters.iter().find(|(one, _)| *one == name);
    found.expect("a counter").1
}

/// A worker that answers, and its place in etcd.
struct Worker {
    info: WorkerInfo,
    registration: EtcdRegistration,
    _process: Process,
    _load: tokio::sync::watch::Sender<baton_proto::domain::WorkerLoad>,
}

impl Worker {
    async fn start(options: &EtcdOptions, id: &str, incarnation: u64) -> Self {
        let listener = bind().await;
        let address = listener.local_addr().unwrap().to_string();
        let info = info(id, incarnation, &address);
        let (process, load) = serve_worker(listener, info.clone());
        let registration = EtcdRegistration::start(options.clone(), LEASE, &info, &Dialer::plain());
        let mut registered = registration.registered();
        soon("registered", registered.wait_for(|is| *is))
            .await
            .unwrap();
        Self {
            info,
            registration,
            _process: process,
            _load: load,
        }
    }

    fn key(&self, options: &EtcdOptions) -> String {
        options.prefix().worker(&self.info)
    }
}

/// Lease and value of a key.
async fn stored(client: &mut Client, key: &str) -> Option<(i64, Vec<u8>)> {
    let found = client.get(key, None).await.unwrap();
    let entry = found.kvs().first()?;
    Some((entry.lease(), entry.value().to_vec()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_is_found_through_etcd_and_leaves_it() {
    let etcd = EtcdServer::start(&[]);
    let options = options(&etcd.endpoint()).await;
    let membership = membership_over(options.clone());
    let mut worker = Worker::start(&options, "d-0", 7).await;
    until(&membership, "found", |table| has(table, "d-0", 7)).await;
    let key = worker.key(&options);
    assert_eq!(key, "/test/baton/workers/decode/d-0/0000000000000007");
    let mut client = client(&etcd).await;
    let (lease, value) = stored(&mut client, &key).await.expect("a key");
    assert_ne!(lease, 0, "the key is under a lease");
    assert_eq!(value, record::encode(&worker.info));
    assert_eq!(counter(&membership, "membership_entries"), 1);

    worker.registration.withdrawn().await;
    assert_eq!(stored(&mut client, &key).await, None);
    until_counter(&membership, "membership_entries", |count| count == 0).await;
    // It finishes what runs: the connection tells when it has ended.
    assert!(has(&membership.table().borrow(), "d-0", 7));
    drop(worker);
    until(&membership, "gone", MemberTable::is_empty).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dsc_01_an_outage_of_etcd_loses_nobody() {
    let mut etcd = EtcdServer::start(&[]);
    let options = options(&etcd.endpoint()).await;
    let membership = membership_over(options.clone());
    let workers = [
        Worker::start(&options, "d-0", 1).await,
        Worker::start(&options, "d-1", 2).await,
    ];
    until(&membership, "both", |table| table.len() == 2).await;
    // Whoever was dropped for a moment would be registered anew.
    let (mut never_less, fewest) = (membership.table(), Arc::new(std::sync::Mutex::new(2)));
    let seen = fewest.clone();
    let watching = tokio::spawn(async move {
        while never_less.changed().await.is_ok() {
            let count = never_less.borrow_and_update().len();
            let mut fewest = seen.lock().unwrap();
            *fewest = count.min(*fewest);
        }
    });
    for outage in ["stopped", "killed", "killed and emptied"] {
        if outage == "stopped" {
            etcd.signal("STOP");
        } else {
            etcd.kill();
        }
        for worker in &workers {
            let mut registered = worker.registration.registered();
            soon("noticed", registered.wait_for(|is| !is))
                .await
                .unwrap();
        }
        // Longer than their leases.
        until_counter(&membership, "membership_age_ms", |age| age > 2500).await;
        if outage == "stopped" {
            etcd.signal("CONT");
        } else {
            etcd.start_again(outage == "killed");
        }
        for worker in &workers {
            let mut registered = worker.registration.registered();
            soon("back", registered.wait_for(|is| *is)).await.unwrap();
        }
        until_counter(&membership, "membership_entries", |count| count == 2).await;
        until_counter(&membership, "membership_age_ms", |age| age < 2500).await;
        let mut client = client(&etcd).await;
        for worker in &workers {
            assert!(stored(&mut client, &worker.key(&options)).await.is_some());
        }
    }
    watching.abort();
    assert_eq!(*fewest.lock().unwrap(), 2, "nobody was dropped");
}

#[tokio::test(flavor = "multi_thread")]
async fn dsc_01_etcd_may_come_after_everybody_else() {
    let mut etcd = EtcdServer::start(&[]);
    let options = options(&etcd.endpoint()).await;
    etcd.kill();
    let membership = membership_over(options.clone());
    let starting = Worker::start(&options, "d-0", 1);
    let mut starting = std::pin::pin!(starting);
    let early = tokio::time::timeout(Duration::from_secs(1), &mut starting).await;
    assert!(early.is_err(), "registered without etcd");
    etcd.start_again(true);
    let _worker = starting.await;
    until(&membership, "found", |table| has(table, "d-0", 1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dsc_02_a_revoked_lease_is_replaced() {
    let etcd = EtcdServer::start(&[]);
    let options = options(&etcd.endpoint()).await;
    let membership = membership_over(options.clone());
    let worker = Worker::start(&options, "d-0", 1).await;
    until(&membership, "found", |table| has(table, "d-0", 1)).await;
    let (mut client, key) = (client(&etcd).await, worker.key(&options));
    let mut leases = BTreeSet::new();
    for _ in 0..3 {
        let (lease, _) = soon("the key is back", back(&mut client, &key)).await;
        assert!(leases.insert(lease), "lease {lease:x} was used again");
        client.lease_revoke(lease).await.unwrap();
    }
    let (lease, _) = soon("the key is back", back(&mut client, &key)).await;

    // No lease is granted for a while.
    let alarm = client.alarm(AlarmAction::Activate, AlarmType::Nospace, None);
    alarm.await.unwrap();
    client.lease_revoke(lease).await.unwrap();
    let mut registered = worker.registration.registered();
    soon("noticed", registered.wait_for(|is| !is))
        .await
        .unwrap();
    let refused = client.lease_grant(5, None).await;
    refused.expect_err("etcd grants leases without space");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(stored(&mut client, &key).await, None);
    let alarm = client.alarm(AlarmAction::Deactivate, AlarmType::Nospace, None);
    alarm.await.unwrap();
    soon("the key is back", back(&mut client, &key)).await;
    // The connection was fine all the time.
    assert!(has(&membership.table().borrow(), "d-0", 1));
}

async fn back(client: &mut Client, key: &str) -> (i64, Vec<u8>) {
    loop {
        if let Some(found) = stored(client, key).await {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dsc_02_a_deleted_key_is_put_again() {
    let etcd = EtcdServer::start(&[]);
    let options = options(&etcd.endpoint()).await;
    let worker = Worker::start(&options, "d-0", 1).await;
    let (mut client, key) = (client(&etcd).await, worker.key(&options));
    let before = stored(&mut client, &key).await.expect("a key");
    client.delete(&*key, None).await.unwrap();
    let after = soon("the key is back", back(&mut client, &key)).await;
    assert_eq!(before, after, "under the same lease");
    client.put(&*key, "garbage", None).await.unwrap();
    soon("the value is back", async {
        while stored(&mut client, &key).await.as_ref() != Some(&before) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dsc_03_a_watch_that_fell_silent_is_replaced() {
    let etcd = EtcdServer::start(&[]);
    let direct = options(&etcd.endpoint()).await;
    let (proxy, silence) = silent_proxy(etcd.endpoint()).await;
    let both = options(&format!("{proxy},{}", etcd.endpoint())).await;
    let membership = membership_over(both);
    let _first = Worker::start(&direct, "d-0", 1).await;
    until(&membership, "found", |table| has(table, "d-0", 1)).await;
    assert!(counter(&membership, "membership_age_ms") < 10_000);
    // Nothing is closed, nothing comes any more.
    silence.send_replace(true);
    let _second = Worker::start(&direct, "d-1", 2).await;
    until_counter(&membership, "membership_age_ms", |age| age > 3000).await;
    until(&membership, "the second", |table| has(table, "d-1", 2)).await;
    assert!(has(&membership.table().borrow(), "d-0", 1));
    until_counter(&membership, "membership_age_ms", |age| age < 3000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dsc_05_after_a_compaction_the_whole_list_is_read() {
    let etcd = EtcdServer::start(&[]);
    let direct = options(&etcd.endpoint()).await;
    let (proxy, silence) = silent_proxy(etcd.endpoint()).await;
    let membership = membership_over(options(&proxy).await);
    let mut workers = Vec::new();
    for incarnation in 1..=4 {
        workers.push(Worker::start(&direct, &format!("d-{incarnation}"), incarnation).await);
    }
    until(&membership, "all", |table| table.len() == 4).await;
    let reads = counter(&membership, "membership_full_reads");
    silence.send_replace(true);
    let gone: Vec<_> = workers
        .drain(..2)
        .map(|worker| worker.key(&direct))
        .collect();
    let mut client = client(&etcd).await;
    soon("their leases end", async {
        for key in &gone {
            while stored(&mut client, key).await.is_some() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    })
    .await;
    let last = client.put("elsewhere", "x", None).await.unwrap();
    let revision = last.header().unwrap().revision();
    client.compact(revision, None).await.unwrap();
    let _fifth = Worker::start(&direct, "d-5", 5).await;
    silence.send_replace(false);
    until(&membership, "the right three", |table| {
        let right = [3, 4, 5].map(|n| has(table, &format!("d-{n}"), n));
        table.len() == 3 && right == [true; 3]
    })
    .await;
    assert!(counter(&membership, "membership_full_reads") > reads);
    until_counter(&membership, "membership_entries", |count| count == 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dsc_06_a_put_on_a_known_key_replaces_the_whole_value() {
    let etcd = EtcdServer::start(&[]);
    let options = options(&etcd.endpoint()).await;
    let membership = membership_over(options.clone());
    let mut client = client(&etcd).await;
    let [first, second] = [bind().await, bind().await];
    let at = |listener: &std::net::TcpListener| {
        info("d-0", 1, &listener.local_addr().unwrap().to_string())
    };
    let (old, new) = (at(&first), at(&second));
    let key = options.prefix().worker(&old);
    // One process at two addresses: the old one would answer for ever.
    let _old = serve_worker(first, old.clone());
    let _new = serve_worker(second, new.clone());
    client.put(&*key, record::encode(&old), None).await.unwrap();
    let at = |table: &MemberTable, address: &str| {
        table.len() == 1 && table.iter().all(|(_, one)| one.info.address == address)
    };
    until(&membership, "old", |table| at(table, &old.address)).await;
    client.put(&*key, record::encode(&new), None).await.unwrap();
    until(&membership, "new", |table| at(table, &new.address)).await;

    // Another model under the same key than the process has: it is not what etcd says it is.
    let mut other = new.clone();
    other.fingerprint.weights_digest = [9; 32];
    client
        .put(&*key, record::encode(&other), None)
        .await
        .unwrap();
    until(&membership, "fenced", MemberTable::is_empty).await;
    until_counter(&membership, "membership_workers_fenced", |count| count > 0).await;
    client.put(&*key, record::encode(&new), None).await.unwrap();
    until(&membership, "again", |table| at(table, &new.address)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dsc_07_who_answers_at_an_address_must_be_who_is_named_there() {
    let etcd = EtcdServer::start(&[]);
    let options = options(&etcd.endpoint()).await;
    let membership = membership_over(options.clone());
    let mut client = client(&etcd).await;
    let listener = bind().await;
    let address = listener.local_addr().unwrap().to_string();
    let here = info("d-0", 2, &address);
    let _process = serve_worker(listener, here.clone());
    let other_role = WorkerInfo {
        role: WorkerRole::Prefill,
        ..here.clone()
    };
    let other_name = info("d-1", 2, &address);
    let other_start = info("d-0", 1, &address);
    let wrong = [other_role, other_name, other_start];
    for wrong in &wrong {
        let key = options.prefix().worker(wrong);
        client.put(key, record::encode(wrong), None).await.unwrap();
    }
    until_counter(&membership, "membership_workers_fenced", |count| count >= 3).await;
    assert!(membership.table().borrow().is_empty());
    let key = options.prefix().worker(&here);
    client.put(key, record::encode(&here), None).await.unwrap();
    until(&membership, "the true one", |table| {
        table.len() == 1 && has(table, "d-0", 2)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dsc_09_workers_of_one_name_coexist_in_etcd() {
    let etcd = EtcdServer::start(&[]);
    let options = options(&etcd.endpoint()).await;
    let membership = membership_over(options.clone());
    let mut first = Worker::start(&options, "d-0", 1).await;
    let second = Worker::start(&options, "d-0", 2).await;
    until(&membership, "both", |table| table.len() == 2).await;
    // The first one's end takes away its own key only.
    first.registration.withdrawn().await;
    drop(first);
    until(&membership, "the second", |table| {
        table.len() == 1 && has(table, "d-0", 2)
    })
    .await;
    let mut client = client(&etcd).await;
    let key = second.key(&options);
    assert!(stored(&mut client, &key).await.is_some());
    assert!(*second.registration.registered().borrow());
}

#[tokio::test(flavor = "multi_thread")]
async fn sec_07_invalid_entries_are_skipped_and_harm_nobody() {
    let etcd = EtcdServer::start(&[]);
    let options = options(&etcd.endpoint()).await;
    let mut client = client(&etcd).await;
    let workers = options.prefix().workers();
    let valid = record::encode(&info("d-9", 9, "127.0.0.1:9"));
    let digits = "0000000000000009";
    let large = vec![0; 1 << 20];
    let garbage = [
        (format!("{workers}decode/d-9/{digits}/x"), &valid[..]),
        (format!("{workers}decode/../d-9/{digits}"), &valid),
        (format!("{workers}router/d-9/{digits}"), &valid),
        (format!("{workers}decode/d-8/{digits}"), &valid),
        (format!("{workers}prefill/d-9/{digits}"), &valid),
        (format!("{workers}decode/d-7/{digits}"), b"not protobuf"),
        (format!("{workers}decode/d-6/{digits}"), b""),
        (format!("{workers}decode/d-5/{digits}"), &large),
        (workers.clone(), b"x"),
    ];
    let (listed, watched) = garbage.split_at(5);
    for (key, value) in listed {
        client.put(&**key, *value, None).await.unwrap();
    }
    let membership = membership_over(options.clone());
    let _worker = Worker::start(&options, "d-0", 1).await;
    until(&membership, "the valid one", |table| has(table, "d-0", 1)).await;
    for (key, value) in watched {
        client.put(&**key, *value, None).await.unwrap();
    }
    let all = garbage.len() as u64;
    until_counter(&membership, "membership_entries_invalid", |count| {
        count == all
    })
    .await;
    let _late = Worker::start(&options, "d-1", 2).await;
    until(&membership, "a late one", |table| has(table, "d-1", 2)).await;
    assert_eq!(counter(&membership, "membership_entries"), 2);
    assert_eq!(membership.table().borrow().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn three_hundred_workers_are_followed() {
    const WORKERS: u64 = 300;
    let etcd = EtcdServer::start(&[]);
    let options = options(&etcd.endpoint()).await;
    let mut client = client(&etcd).await;
    let (mut workers, mut keys) = (Vec::new(), Vec::new());
    for n in 1..=WORKERS {
        let listener = bind().await;
        let address = listener.local_addr().unwrap().to_string();
        let info = info(&format!("d-{n}"), n, &address);
        let key = options.prefix().worker(&info);
        client
            .put(&*key, record::encode(&info), None)
            .await
            .unwrap();
        keys.push(key);
        workers.push((listener, info));
    }
    let _rest = serve_workers(workers.split_off(150));
    let half = serve_workers(workers);
    let membership = membership_over(options.clone());
    until(&membership, "all", |table| table.len() as u64 == WORKERS).await;
    let prefix = GetOptions::new().with_prefix().with_count_only();
    let count = client.get(options.prefix().workers(), Some(prefix)).await;
    assert_eq!(count.unwrap().count() as u64, WORKERS);
    // Half of them end and are deleted, all at once.
    drop(half);
    for key in &keys[..150] {
        client.delete(&**key, None).await.unwrap();
    }
    until(&membership, "the other half", |table| {
        table.len() == 150 && (151..=WORKERS).all(|n| has(table, &format!("d-{n}"), n))
    })
    .await;
    until_counter(&membership, "membership_entries", |count| count == 150).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_may_ask_for_a_user_and_password() {
    let etcd = EtcdServer::start(&[]);
    let mut root = client(&etcd).await;
    root.role_add("root").await.unwrap();
    root.role_add("baton").await.unwrap();
    let all = etcd_client::Permission::read_write("/test/").with_prefix();
    root.role_grant_permission("baton", all).await.unwrap();
    root.user_add("root", "r", None).await.unwrap();
    root.user_grant_role("root", "root").await.unwrap();
    root.user_add("baton", "right", None).await.unwrap();
    root.user_grant_role("baton", "baton").await.unwrap();
    root.auth_enable().await.unwrap();

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    std::fs::write(&file, "wrong\n").unwrap();
    let nobody = options(&etcd.endpoint()).await;
    let somebody = nobody
        .clone()
        .with_user("baton".into(), EtcdPassword::File(file.clone()));
    let membership = membership_over(somebody.clone());
    let starting = Worker::start(&somebody, "d-0", 1);
    let mut starting = std::pin::pin!(starting);
    let early = tokio::time::timeout(Duration::from_secs(1), &mut starting).await;
    assert!(early.is_err(), "registered with a wrong password");
    // The file is read again for each connection.
    std::fs::write(&file, "right\n").unwrap();
    let mut worker = starting.await;
    until(&membership, "found", |table| has(table, "d-0", 1)).await;
    worker.registration.withdrawn().await;
    until_counter(&membership, "membership_entries", |count| count == 0).await;
    let text = EtcdPassword::Text("right".into());
    assert!(!format!("{text:?}").contains("right"));
    let text = nobody.with_user("baton".into(), text);
    let _other = Worker::start(&text, "d-1", 2).await;
    until(&membership, "the other", |table| has(table, "d-1", 2)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_may_ask_for_tls_with_a_client_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let mut authority = rcgen::CertificateParams::new(Vec::<String>::new()).unwrap();
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca_key = rcgen::KeyPair::generate().unwrap();
    let ca = authority.self_signed(&ca_key).unwrap();
    std::fs::write(path("ca.pem"), ca.pem()).unwrap();
    let issuer = rcgen::Issuer::new(authority, ca_key);
    for name in ["server", "client"] {
        let mut params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        params.extended_key_usages = vec![
            rcgen::ExtendedKeyUsagePurpose::ServerAuth,
            rcgen::ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &issuer).unwrap();
        std::fs::write(path(&format!("{name}.pem")), certificate.pem()).unwrap();
        std::fs::write(path(&format!("{name}.key")), key.serialize_pem()).unwrap();
    }
    let shown = |name: &str| path(name).display().to_string();
    let etcd = EtcdServer::start(&[
        "--cert-file",
        &shown("server.pem"),
        "--key-file",
        &shown("server.key"),
        "--client-cert-auth",
        "--trusted-ca-file",
        &shown("ca.pem"),
    ]);
    let bare = EtcdOptions::new(&etcd.endpoint(), "baton").unwrap();
    let trusting = bare.clone().with_ca(path("ca.pem"));
    let identity = (path("client.pem"), path("client.key"));
    let complete = trusting
        .clone()
        .with_identity(identity.0.clone(), identity.1.clone());
    let complete = complete.validate().await.unwrap();
    let membership = membership_over(complete.clone());
    let _worker = Worker::start(&complete, "d-0", 1).await;
    until(&membership, "found", |table| has(table, "d-0", 1)).await;

    // Without the certificate etcd lets nobody in.
    let trusting = trusting.validate().await.unwrap();
    let stranger = EtcdRegistration::start(
        trusting,
        LEASE,
        &info("d-1", 2, "127.0.0.1:1"),
        &Dialer::plain(),
    );
    let mut registered = stranger.registered();
    let early = tokio::time::timeout(Duration::from_secs(1), registered.wait_for(|is| *is)).await;
    assert!(early.is_err(), "registered without a certificate");

    let alone = bare.with_identity(identity.0, identity.1).validate().await;
    alone.expect_err("a client certificate without a CA");
    let plain = EtcdOptions::new("http://127.0.0.1:1", "baton").unwrap();
    plain
        .with_ca(path("ca.pem"))
        .validate()
        .await
        .expect_err("TLS settings without TLS");
    let absent = EtcdOptions::new("127.0.0.1:1", "baton").unwrap();
    let absent = absent.with_ca(path("absent.pem")).validate().await;
    let error = absent.expect_err("a file that is not there").to_string();
    assert!(error.contains("absent.pem"), "{error}");
}

#[test]
fn endpoints_are_checked() {
    for right in [
        "a:1",
        "http://a:1,https://b.c:2",
        "[::1]:2379",
        "10.0.0.1:2379",
    ] {
        EtcdOptions::new(right, "baton").expect(right);
    }
    let many = vec!["a:1"; 17].join(",");
    for wrong in [
        "",
        "a",
        "a:b",
        "a:0",
        "a:99999",
        ":1",
        "a:1,",
        "ftp://a:1",
        "a/b:1",
        "a b:1",
        "::1:5",
        &many,
    ] {
        EtcdOptions::new(wrong, "baton").expect_err(wrong);
    }
}
