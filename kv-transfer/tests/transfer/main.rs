//! Whole transfers between a receiver and a sender, over both transports.

mod support;

use baton_kv_transfer::TransportChoice;
use baton_proto::domain::Transport;
use support::*;

const BOTH: [(TransportChoice, Transport); 2] = [
    (TransportChoice::Shm, Transport::Shm),
    (TransportChoice::Tcp, Transport::Tcp),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_land_and_commit() {
    for (choice, transport) in BOTH {
        let landed = receiving(layout(40), choice).await;
        let sent = sending(layout(64), choice, 1);
        let (local, granted) = ([3, 4, 5, 9, 8], [10, 11, 20, 21]);
        let (grant, mut incoming) = landed.open(&granted, 1);
        let progress = sent.progress(70, &local);
        let outgoing = sent.sender.begin(grant, progress.clone());
        advance_all(&progress, &sent.layout, 32);
        advance_all(&progress, &sent.layout, 70);
        progress.finish();
        let stats = within("commit", outgoing.commit(b"payload".to_vec()))
            .await
            .expect("commit");
        assert_eq!(stats.transport, transport);
        assert_eq!(stats.bytes, (4 * sent.layout.page_bytes()) as u64);
        assert_eq!(
            committed(within("outcome", incoming.outcome()).await),
            b"payload"
        );
        assert_same(&sent, &landed, &local, &granted, 1);
        within("fence", incoming.fenced()).await;
        assert_eq!(landed.counter("committed"), 1);
        assert_eq!(landed.counter("pages_quarantined"), 0);
    }
}
