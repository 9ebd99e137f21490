//! Passing the pool's descriptor over a Unix socket. It must not know frames.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use tokio::io::Interest;
use tokio::net::UnixStream;

use super::SharedMemory;

/// Whether the peer of a socket runs as this user, by the kernel's word.
pub(crate) fn same_user(stream: &UnixStream) -> bool {
    stream
        .peer_cred()
        .is_ok_and(|peer| peer.uid() == rustix::process::geteuid().as_raw())
}

/// Sends `bytes` with the pool's descriptor attached to the first of them; returns how many were sent.
pub(crate) async fn send_with_memory(
    stream: &UnixStream,
    bytes: &[u8],
    memory: &SharedMemory,
) -> io::Result<usize> {
    stream
        .async_io(Interest::WRITABLE, || {
            let descriptors = [memory.descriptor()];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            control.push(SendAncillaryMessage::ScmRights(&descriptors));
            let words = [IoSlice::new(bytes)];
            Ok(rustix::net::sendmsg(
                stream,
                &words,
                &mut control,
                SendFlags::NOSIGNAL,
            )?)
        })
        .await
}

/// Reads some bytes into `place`, and the descriptor attached to them, if any.
pub(crate) async fn receive_with_memory(
    stream: &UnixStream,
    place: &mut [u8],
) -> io::Result<(usize, Option<OwnedFd>)> {
    stream
        .async_io(Interest::READABLE, || {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut words = [IoSliceMut::new(place)];
            let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
            let received = rustix::net::recvmsg(stream, &mut words, &mut control, flags)?;
            let descriptor = control.drain().find_map(|message| match message {
                RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
                _ => None,
            });
            Ok((received.bytes, descriptor))
        })
        .await
}
