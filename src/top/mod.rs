//! `baton top`: what the page at `/ui` shows, in a terminal.
//!
//! - `watch`: asks the router, second by second.
//! - `screen`: what is selected and open, and what keys do.
//! - `draw`, `workers`, `requests`, `latency`: what it looks like.

mod draw;
mod latency;
mod requests;
mod screen;
#[cfg(test)]
mod tests;
mod watch;
mod workers;

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEvent, KeyEventKind};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use crate::args::TopArgs;
use crate::client;
use crate::exit::Failure;
use screen::{Action, Screen};
use watch::{Heard, Watch};

/// How often the router is asked.
const EVERY: Duration = Duration::from_secs(1);
/// How often bars move.
const FRAME: Duration = Duration::from_millis(250);
/// Keys that wait to be taken, at most.
const KEYS: usize = 64;
/// Answers that wait to be shown, and questions that are under way, at most.
const HEARD: usize = 4;
/// Longest wait for a key before the reader looks whether it is still needed.
const LOOK: Duration = Duration::from_millis(200);

/// Shows a running service until it is told to stop.
pub(crate) async fn run(args: TopArgs) -> Result<(), Failure> {
    if !std::io::stdin().is_terminal() || !std::io::stdout().is_terminal() {
        return Err(Failure::usage(
            "baton top needs a terminal for input and output; `baton status` prints the same once, with --format json for programs",
        ));
    }
    let address = args.connect.as_deref().unwrap_or(client::DEFAULT_ROUTER);
    let watch = Watch::new(client::admin(args.connect.as_deref(), &args.security).await?);
    // Before the terminal changes: a refusal is told as ever.
    let mut screen = Screen::new(address, watch.first().await?);
    let _restored = Restored;
    let mut terminal = ratatui::try_init()
        .map_err(|error| Failure::failed(format!("the terminal cannot be used: {error}")))?;
    show(&mut terminal, &mut screen, &watch).await
}

/// Gives the terminal back, however this ends; ratatui does so after a panic.
struct Restored;

impl Drop for Restored {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Draws what is known, and never waits for the router: keys are taken while it is asked.
async fn show(
    terminal: &mut DefaultTerminal,
    screen: &mut Screen,
    watch: &Watch,
) -> Result<(), Failure> {
    let mut keys = keys();
    let (sender, mut heard) = mpsc::channel(HEARD);
    // Ended when they are dropped.
    let mut asking = JoinSet::new();
    asking.spawn(keep_asking(watch.clone(), sender.clone()));
    let mut frames = tokio::time::interval(FRAME);
    frames.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        terminal
            .draw(|frame| draw::draw(frame, screen, Instant::now()))
            .map_err(|error| Failure::failed(format!("the terminal cannot be drawn: {error}")))?;
        while asking.try_join_next().is_some() {}
        let action = tokio::select! {
            key = keys.recv() => key.map_or(Action::Quit, |key| screen.press(key)),
            Some(heard) = heard.recv() => {
                screen.hear(heard);
                Action::None
            }
            _ = frames.tick() => Action::None,
        };
        if action == Action::Quit {
            return Ok(());
        }
        if action != Action::None && asking.len() <= HEARD {
            asking.spawn(act(watch.clone(), action, sender.clone()));
        }
    }
}

/// Asks for everything, second by second.
async fn keep_asking(watch: Watch, sender: mpsc::Sender<Heard>) {
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if sender.send(Heard::All(watch.all().await)).await.is_err() {
            return;
        }
    }
}

/// Asks for what a key meant.
async fn act(watch: Watch, action: Action, sender: mpsc::Sender<Heard>) {
    let heard = match action {
        Action::Drain(worker) => Heard::Said(watch.drain(&worker).await),
        Action::Open(request) => Heard::Request(watch.request(&request).await),
        Action::None | Action::Quit => return,
    };
    // Nobody listens any more: the command has ended.
    let _ = sender.send(heard).await;
}

/// Keys as they are pressed; they end when the terminal does.
fn keys() -> mpsc::Receiver<KeyEvent> {
    let (sender, receiver) = mpsc::channel(KEYS);
    tokio::task::spawn_blocking(move || {
        while !sender.is_closed() {
            match event::poll(LOOK) {
                Ok(false) => continue,
                Ok(true) => {}
                Err(_) => return,
            }
            let pressed = match event::read() {
                Ok(Event::Key(key)) => (key.kind == KeyEventKind::Press).then_some(key),
                Ok(_) => None,
                Err(_) => return,
            };
            if pressed.is_some_and(|key| sender.blocking_send(key).is_err()) {
                return;
            }
        }
    });
    receiver
}
