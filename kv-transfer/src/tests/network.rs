//! Transfers over a network of somebody else's: streams that hold back what is not flushed, and that read
//! little at a time.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::BufStream;
use tokio::net::{TcpListener, TcpStream};

use super::support::*;
use crate::{DataStream, Listen, Network, Opening, Outcome, SenderOptions, TransportChoice};

/// Buffers more than any control frame holds; what is not flushed never leaves.
#[derive(Debug)]
struct Buffered;

fn buffered(stream: TcpStream) -> DataStream {
    DataStream::boxed(BufStream::with_capacity(300, 64 << 10, stream))
}

impl Network for Buffered {
    fn connect(&self, _: String, address: SocketAddr) -> Opening<'static, DataStream> {
        Box::pin(async move { Ok(buffered(TcpStream::connect(address).await?)) })
    }

    fn listen(&self, address: SocketAddr) -> Opening<'static, Box<dyn Listen>> {
        Box::pin(async move {
            let listener: Box<dyn Listen> =
                Box::new(BufferedListener(TcpListener::bind(address).await?));
            Ok(listener)
        })
    }
}

struct BufferedListener(TcpListener);

impl Listen for BufferedListener {
    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.0.local_addr()
    }

    fn accept(&mut self) -> Opening<'_, Opening<'static, DataStream>> {
        Box::pin(async {
            let (stream, _) = self.0.accept().await?;
            let open: Opening<'static, DataStream> = Box::pin(async { Ok(buffered(stream)) });
            Ok(open)
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_may_hold_back_what_is_not_flushed() {
    let landed = receiving_with(layout(40), TransportChoice::Tcp, 100, |options| {
        options.network = Arc::new(Buffered);
        // Less than the transfer: credit must come back on the way.
        options.credit_bytes = layout(40).page_bytes();
    })
    .await;
    let options = SenderOptions {
        network: Arc::new(Buffered),
        ..sender_options(TransportChoice::Tcp)
    };
    let sent = sending_with(layout(64), 1, options, |_| {});
    let (local, granted) = ([3, 4, 5, 9, 8], [10, 11, 20, 21]);
    let (grant, mut incoming) = landed.open(&granted, 1);
    let progress = sent.progress(70, &local);
    let outgoing = sent.sender.begin(grant, progress.clone());
    advance_all(&progress, &sent.layout, 70);
    progress.finish();
    let stats = within("commit", outgoing.commit(b"payload".to_vec())).await;
    stats.expect("commit");
    committed(within("outcome", incoming.outcome()).await);
    assert_same(&sent, &landed, &local, &granted, 1);

    // Revoke and its answer too, in the middle of the stream.
    let before = landed.counter("bytes_received");
    let (grant, mut incoming) = landed.open(&granted, 1);
    let progress = sent.progress(70, &local);
    let outgoing = sent.sender.begin(grant, progress.clone());
    advance_all(&progress, &sent.layout, 32);
    until("pages", || landed.counter("bytes_received") > before).await;
    within("revoke", outgoing.revoke()).await;
    assert_eq!(
        within("outcome", incoming.outcome()).await,
        Outcome::Revoked
    );
}
