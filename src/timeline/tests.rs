//! Timelines of requests that went this way and that.

use baton_proto::v1::PlacementAttempt;

use super::*;

fn placed(attempt: u32, prefill: &str, decode: &str) -> PlacementAttempt {
    PlacementAttempt {
        attempt,
        prefill_worker: prefill.into(),
        decode_worker: decode.into(),
        reason: "split: least loaded".into(),
        ..PlacementAttempt::default()
    }
}

fn record() -> RequestRecord {
    RequestRecord {
        request_id: "r1".into(),
        outcome: "ok".into(),
        admitted_us: Some(100),
        first_token_us: Some(5000),
        finished_us: Some(10_000),
        attempts: vec![RequestAttempt {
            placement: Some(placed(1, "prefill-0", "decode-0")),
            begun_us: 100,
            scheduled_us: Some(1000),
            granted_us: Some(1500),
            transfer_us: Some(2000),
            landed_us: Some(5500),
            first_token_us: Some(5000),
            ended_us: Some(10_000),
        }],
        receipt: Some(Receipt {
            landing_us: 500,
            ..Receipt::default()
        }),
        ..RequestRecord::default()
    }
}

/// Name and times of all phases.
fn phases(timeline: &Timeline) -> Vec<(&'static str, u64, u64)> {
    let all = timeline.attempts.iter().flat_map(|attempt| &attempt.phases);
    all.map(|phase| (phase.name, phase.from_us, phase.to_us))
        .collect()
}

#[test]
fn a_handed_off_request_has_all_phases() {
    let timeline = Timeline::of_record(&record(), 99_999);
    assert_eq!(
        phases(&timeline),
        [
            ("admission", 0, 100),
            ("queued", 100, 1000),
            ("prefill", 1000, 5000),
            ("transfer", 2000, 5500),
            ("landing", 5500, 6000),
            ("decode", 6000, 10_000),
        ]
    );
    let mut late = record();
    late.attempts[0].granted_us = Some(5300);
    late.attempts[0].transfer_us = Some(5350);
    let timeline = Timeline::of_record(&late, 0);
    assert!(phases(&timeline).contains(&("grant wait", 5000, 5300)));
}

#[test]
fn a_running_request_ends_now() {
    let mut running = record();
    (running.finished_us, running.receipt, running.outcome) = (None, None, String::new());
    running.received_us = 1_000_000;
    running.phase = "decode".into();
    (running.attempts[0].ended_us, running.attempts[0].landed_us) = (None, None);
    let timeline = Timeline::of_record(&running, 1_008_000);
    assert_eq!(timeline.end_us, 8000);
    assert_eq!(phases(&timeline).last(), Some(&("transfer", 2000, 8000)));
    assert_eq!(timeline.outcome, "decode, still running");
}

#[test]
fn attempts_that_failed_are_told() {
    let mut resumed = record();
    let mut placement = placed(1, "prefill-0", "decode-0");
    placement.failure = "decode-0: connection lost".into();
    resumed.attempts[0].placement = Some(placement);
    resumed.attempts.push(RequestAttempt {
        placement: Some(placed(2, "", "decode-1")),
        begun_us: 10_000,
        scheduled_us: Some(11_000),
        first_token_us: Some(12_000),
        ended_us: Some(20_000),
        ..RequestAttempt::default()
    });
    resumed.finished_us = Some(20_000);
    let timeline = Timeline::of_record(&resumed, 0);
    let text = Canvas::plain(100).draw(&timeline);
    assert!(text.contains("prefill-0 -> decode-0 (split: least loaded), failed: decode-0"));
    assert!(text.contains("attempt 2: decode-1"));
    assert!(phases(&timeline).ends_with(&[
        ("queued", 10_000, 11_000),
        ("prefill", 11_000, 12_000),
        ("decode", 12_000, 20_000),
    ]));
}

#[test]
fn lines_are_as_wide_as_the_terminal() {
    let timeline = Timeline::of_record(&record(), 0);
    for columns in [60, 80, 200] {
        let text = Canvas::plain(columns).draw(&timeline);
        let bars = text.lines().filter(|line| line.contains(['█', '▏']));
        let bars: Vec<_> = bars.collect();
        assert_eq!(bars.len(), 6, "{text}");
        for line in bars {
            assert_eq!(line.chars().count(), columns, "{text}");
        }
        assert!(!text.contains('\x1b'), "{text}");
    }
    let text = Canvas::coloured(80).draw(&timeline);
    assert!(text.contains("\x1b[34m█"), "{text}");
    // Nothing takes no time, and no time at all is still a mark.
    let none = Timeline::of_record(&RequestRecord::default(), 0);
    assert!(Canvas::plain(1).draw(&none).contains('▏'));
}

#[test]
fn a_receipt_alone_gives_durations_one_after_the_other() {
    let receipt = Receipt {
        request_id: "r1".into(),
        admission_us: 100,
        queue_us: 900,
        prefill_us: 4000,
        transfer_us: 2000,
        transfer_bytes: 1,
        transfer_overlap: 0.75,
        landing_us: 500,
        ttft_us: 5000,
        end_to_end_us: 10_000,
        attempts: vec![placed(1, "prefill-0", "decode-0")],
        ..Receipt::default()
    };
    let timeline = Timeline::of_receipt(&receipt);
    assert_eq!(
        phases(&timeline),
        [
            ("admission", 0, 100),
            ("queued", 100, 1000),
            ("prefill", 1000, 5000),
            ("transfer", 3500, 5500),
            ("landing", 5500, 6000),
            ("decode", 6000, 10_000),
        ]
    );
    assert!(timeline.note.is_some(), "the transfer's place is a guess");
    let json = timeline.json();
    assert_eq!(json["phases"][2]["phase"], "prefill");
    assert_eq!(json["phases"][2]["worker"], "prefill-0");
}
