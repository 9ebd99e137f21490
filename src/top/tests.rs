//! What is drawn, read back from a terminal in memory.

use std::time::{Duration, Instant};

use baton_proto::v1;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use tonic::Status;

use super::draw::draw;
use super::latency::quantile;
use super::requests::{Phase, phases};
use super::screen::{Action, Screen};
use super::watch::{Heard, Known};

fn worker(id: &str, role: v1::WorkerRole, incarnation: u64, state: &str) -> v1::WorkerStatus {
    v1::WorkerStatus {
        info: Some(v1::WorkerInfo {
            worker_id: id.into(),
            incarnation,
            role: role.into(),
            address: "127.0.0.1:7071".into(),
            ..v1::WorkerInfo::default()
        }),
        load: Some(v1::WorkerLoad {
            queued: 2,
            running: 3,
            pages: Some(v1::PageLedger {
                total: 100,
                free: 40,
                cached: 25,
                live: 30,
                granted: 5,
                quarantined: 0,
            }),
            step_us: 4200,
            ..v1::WorkerLoad::default()
        }),
        in_flight: 4,
        state: state.into(),
        ..v1::WorkerStatus::default()
    }
}

fn request(label: &str, received_us: u64) -> v1::RequestRecord {
    v1::RequestRecord {
        request_id: format!("{received_us:032x}"),
        request_label: label.into(),
        received_us,
        prompt_tokens: 100,
        completion_tokens: 7,
        phase: "ended".into(),
        outcome: "ok".into(),
        first_token_us: Some(1_000_000),
        finished_us: Some(6_000_000),
        attempts: vec![v1::RequestAttempt {
            placement: Some(v1::PlacementAttempt {
                attempt: 1,
                prefill_worker: "prefill-0".into(),
                decode_worker: "decode-0".into(),
                reason: "split: least loaded".into(),
                ..v1::PlacementAttempt::default()
            }),
            begun_us: 100,
            scheduled_us: Some(500_000),
            granted_us: Some(600_000),
            transfer_us: Some(700_000),
            landed_us: Some(2_000_000),
            ended_us: Some(6_000_000),
            first_token_us: Some(1_000_000),
        }],
        ..v1::RequestRecord::default()
    }
}

fn known() -> Known {
    let bins = |first_bin, counts: &[u32]| {
        Some(v1::LatencyBins {
            first_bin,
            counts: counts.to_vec(),
        })
    };
    let second = |second| v1::HistorySecond {
        second,
        received: 2,
        ended_ok: 2,
        completion_tokens: 50,
        ttft: bins(1, &[1, 1]),
        itl: bins(2, &[48]),
        ..v1::HistorySecond::default()
    };
    Known {
        workers: v1::ListWorkersResponse {
            workers: vec![
                worker("prefill-0", v1::WorkerRole::Prefill, 1, "ready"),
                worker("decode-0", v1::WorkerRole::Decode, 2, "quarantined: lost"),
            ],
            router: Some(v1::RouterStatus {
                requests_running: 3,
                ..v1::RouterStatus::default()
            }),
        },
        requests: v1::ListRequestsResponse {
            requests: vec![request("newer", 20_000_000), request("older", 1_000_000)],
            now_us: 30_000_000,
        },
        history: v1::GetHistoryResponse {
            seconds: (0..30).map(second).collect(),
            bin_ends_us: vec![1000, 2000, 4000],
            now_us: 30_000_000,
        },
        at: Instant::now(),
    }
}

fn drawn(screen: &Screen, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal
        .draw(|frame| draw(frame, screen, screen.known.at))
        .unwrap();
    let buffer = terminal.backend().buffer();
    let rows = buffer.content().chunks(width as usize);
    rows.map(|row| {
        row.iter()
            .map(ratatui::buffer::Cell::symbol)
            .collect::<String>()
            + "\n"
    })
    .collect()
}

fn press(screen: &mut Screen, code: KeyCode) -> Action {
    screen.press(KeyEvent::new(code, KeyModifiers::NONE))
}

#[test]
fn everything_stands_on_one_screen() {
    let screen = Screen::new("127.0.0.1:7070", known());
    let text = drawn(&screen, 140, 40);
    for words in [
        "127.0.0.1:7070",
        "3 running, 0 waiting",
        "2.0 requests/s",
        "50 tokens/s",
        "▶ prefill-0",
        "quarantined: lost",
        "3 running   2 queued   4 of this router  step 4.2 ms",
        "30 live  5 granted  25 cached  40 free",
        "TTFT, one minute",
        "ITL, one minute",
        "newer",
        "100+7",
        "d drain",
    ] {
        assert!(text.contains(words), "{words:?} is not in:\n{text}");
    }
    // 30, 5 and 25 of 100 pages in 48 columns.
    let ledger = [
        "█".repeat(14),
        "▓".repeat(2),
        "▒".repeat(12),
        "·".repeat(20),
    ]
    .concat();
    assert!(text.contains(&ledger), "{text}");
    let newer = text.lines().find(|line| line.contains("newer")).unwrap();
    assert!(newer.contains("·▒▒▓▓█"), "{newer}");
}

#[test]
fn small_terminals_and_empty_services_are_drawn() {
    let mut empty = known();
    empty.workers.workers.clear();
    empty.requests.requests.clear();
    empty.history.seconds.clear();
    let screen = Screen::new("router", empty);
    let text = drawn(&screen, 100, 30);
    assert!(text.contains("no worker yet"), "{text}");
    assert!(text.contains("no request yet"), "{text}");
    assert!(text.contains("no TTFT in a minute"), "{text}");
    for (width, height) in [(1, 1), (10, 3), (40, 12), (300, 100)] {
        drawn(&screen, width, height);
        drawn(&Screen::new("router", known()), width, height);
    }
}

#[test]
fn a_drain_is_asked_for_twice() {
    let mut screen = Screen::new("router", known());
    press(&mut screen, KeyCode::Down);
    assert_eq!(press(&mut screen, KeyCode::Char('d')), Action::None);
    let text = drawn(&screen, 100, 30);
    assert!(text.contains("Drain decode-0?"), "{text}");
    assert_eq!(
        press(&mut screen, KeyCode::Char('q')),
        Action::None,
        "closes what is open"
    );
    press(&mut screen, KeyCode::Char('d'));
    let drain = press(&mut screen, KeyCode::Char('y'));
    assert_eq!(drain, Action::Drain("decode-0".into()));
    screen.hear(Heard::Said(
        "decode-0 drains; 3 requests still run there".into(),
    ));
    assert!(drawn(&screen, 100, 30).contains("3 requests still run there"));
    assert_eq!(press(&mut screen, KeyCode::Char('q')), Action::Quit);
    let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(screen.press(interrupt), Action::Quit);
}

#[test]
fn what_is_selected_stays_selected_when_it_moves() {
    let mut screen = Screen::new("router", known());
    press(&mut screen, KeyCode::Tab);
    press(&mut screen, KeyCode::Down);
    press(&mut screen, KeyCode::Down);
    let older = format!("{:032x}", 1_000_000);
    assert_eq!(
        press(&mut screen, KeyCode::Enter),
        Action::Open(older.clone())
    );
    let mut next = known();
    next.requests
        .requests
        .insert(0, request("newest", 25_000_000));
    screen.hear(Heard::All(Ok(next)));
    assert_eq!(press(&mut screen, KeyCode::Enter), Action::Open(older));
    let record = v1::RequestRecord {
        receipt: Some(v1::Receipt::default()),
        ..request("older", 1_000_000)
    };
    screen.hear(Heard::Request(Ok(Box::new(record))));
    let text = drawn(&screen, 120, 40);
    assert!(
        text.contains("Request older") && text.contains("tokens"),
        "{text}"
    );
    screen.press(KeyEvent::new(KeyCode::Esc, KeyModifiers::NONE));
    screen.hear(Heard::Request(Err(Status::not_found("it is forgotten"))));
    assert!(drawn(&screen, 120, 40).contains("it is forgotten"));
}

#[test]
fn silence_is_told() {
    let mut screen = Screen::new("router", known());
    screen.hear(Heard::All(Err(Status::unavailable("connection refused"))));
    let mut terminal = Terminal::new(TestBackend::new(120, 30)).unwrap();
    let later = screen.known.at + Duration::from_secs(7);
    terminal.draw(|frame| draw(frame, &screen, later)).unwrap();
    let text = format!("{}", terminal.backend());
    assert!(
        text.contains("has not answered for 7 s: connection refused"),
        "{text}"
    );
    screen.hear(Heard::All(Ok(known())));
    assert!(!drawn(&screen, 120, 30).contains("has not answered"));
}

#[test]
fn quantiles_lie_within_their_bins() {
    let bins = |first_bin, counts: &[u32]| v1::LatencyBins {
        first_bin,
        counts: counts.to_vec(),
    };
    let ends = [1000, 2000, 4000];
    assert_eq!(quantile(&[], 0.5, &ends), None);
    let both = [bins(0, &[2]), bins(1, &[0, 2])];
    assert_eq!(quantile(&both, 0.25, &ends), Some(500));
    assert_eq!(quantile(&both, 1.0, &ends), Some(4000));
    assert_eq!(
        quantile(&[bins(3, &[1])], 0.5, &ends),
        Some(4000),
        "the last bin has no end"
    );
}

#[test]
fn phases_of_attempts_follow_one_another() {
    let record = request("a", 0);
    let split = phases(&record, &record.attempts[0], 6_000_000);
    let expected = [
        (Phase::Queued, 0, 500_000),
        (Phase::Prefill, 500_000, 1_000_000),
        (Phase::Transfer, 1_000_000, 2_000_000),
        (Phase::Decode, 2_000_000, 6_000_000),
    ];
    assert_eq!(split, expected);
    let waiting = v1::RequestAttempt {
        begun_us: 5,
        ..v1::RequestAttempt::default()
    };
    let running = v1::RequestRecord::default();
    assert_eq!(phases(&running, &waiting, 9), [(Phase::Queued, 5, 9)]);
}
