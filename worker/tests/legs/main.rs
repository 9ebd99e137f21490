//! Both kinds of worker together: real gRPC, real pages over shm and tcp, the real engine on tiny
//! random models. The part of the router is played by `support::router`.

mod bad_input;
mod cancel;
mod exact;
mod life;
mod signs;
mod support;
mod transfers;
