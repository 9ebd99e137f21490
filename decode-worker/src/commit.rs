//! What Commit carries besides pages, checked against the request. It must not know how it travelled.

use baton_proto::domain::CommitPayload;
use baton_proto::ids::Attempt;
use baton_proto::v1;
use baton_scheduler::{ChoiceSoFar, SequenceSpec};
use baton_worker::LegError;
use prost::Message as _;

/// Decodes the payload of a Commit for `attempt` of the request `spec`.
///
/// Every choice that the transferred pages end with has exactly one first token, right after its
/// completion so far; the choices that go on are those and the other unended ones, less those whose
/// first token ended them. At least one does.
///
/// # Errors
/// Bytes that do not decode, or contradict the request.
pub(crate) fn checked(
    payload: &[u8],
    spec: &SequenceSpec,
    attempt: Attempt,
    vocabulary: u32,
) -> Result<CommitPayload, LegError> {
    let wire = v1::CommitPayload::decode(payload)
        .map_err(|error| LegError::BadCommit(format!("it does not decode: {error}")))?;
    let commit =
        CommitPayload::try_from(wire).map_err(|error| LegError::BadCommit(error.to_string()))?;
    check(&commit, spec, attempt, vocabulary).map_err(LegError::BadCommit)?;
    Ok(commit)
}

fn check(
    commit: &CommitPayload,
    spec: &SequenceSpec,
    attempt: Attempt,
    vocabulary: u32,
) -> Result<(), String> {
    let choices = spec.params.choices;
    let none = ChoiceSoFar::default();
    let so_far = |choice: u32| spec.completions.get(choice as usize).unwrap_or(&none);
    let mut running: Vec<u32> = (0..choices)
        .filter(|&choice| !so_far(choice).ended)
        .collect();
    // The pages hold the prompt and, of a choice that runs alone, its completion so far. Other
    // choices that had begun are computed again here and have no first token.
    let mut awaited: Vec<u32> = match running[..] {
        [alone] => vec![alone],
        _ => running
            .iter()
            .copied()
            .filter(|&at| so_far(at).token_ids.is_empty())
            .collect(),
    };
    for token in &commit.first_tokens {
        let choice = token.choice;
        let Some(place) = awaited.iter().position(|&awaited| awaited == choice) else {
            return Err(format!(
                "a first token of choice {choice}, of {choices}, was not awaited"
            ));
        };
        awaited.swap_remove(place);
        if token.attempt != attempt {
            return Err(format!(
                "attempt {} instead of {}",
                token.attempt.0, attempt.0
            ));
        }
        if token.token_id >= vocabulary {
            return Err(format!("token id {} of {vocabulary}", token.token_id));
        }
        let position = so_far(choice).token_ids.len() as u32;
        if token.position != position {
            return Err(format!(
                "position {} of choice {choice} instead of {position}",
                token.position
            ));
        }
        let alternatives = token.logprobs.as_ref().map(|logprobs| logprobs.top.len());
        if alternatives > spec.params.logprobs.map(|most| most as usize) {
            return Err(format!(
                "logprobs of choice {choice} that were not asked for"
            ));
        }
        if token.finish.is_some() {
            running.retain(|&running| running != choice);
        }
    }
    if let Some(choice) = awaited.first() {
        return Err(format!("no first token of choice {choice}"));
    }
    if running.is_empty() || running != commit.running_choices {
        return Err(format!(
            "choices {:?} are said to go on, their first tokens say {running:?}",
            commit.running_choices
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use super::*;
    use baton_proto::domain::{FinishReason, GeneratedToken};
    use baton_sampling::SamplingParams;

    fn spec(choices: u32) -> SequenceSpec {
        SequenceSpec {
            request_id: "r".into(),
            prompt: vec![1, 2, 3].into(),
            completions: Vec::new(),
            params: Arc::new(SamplingParams {
                choices,
                ..SamplingParams::default()
            }),
            cache_salt: Vec::new().into(),
            deadline: Instant::now() + Duration::from_secs(1),
        }
    }

    fn token(choice: u32, finish: Option<FinishReason>) -> GeneratedToken {
        let attempt = Attempt(2);
        GeneratedToken {
            attempt,
            choice,
            position: 0,
            token_id: 7,
            logprobs: None,
            finish,
        }
    }

    fn commit(tokens: Vec<GeneratedToken>, running: &[u32]) -> Vec<u8> {
        let payload = CommitPayload {
            first_tokens: tokens,
            running_choices: running.to_vec(),
            span: None,
        };
        v1::CommitPayload::from(payload).encode_to_vec()
    }

    fn refusal(payload: &[u8], spec: &SequenceSpec) -> String {
        checked(payload, spec, Attempt(2), 50)
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn a_fitting_commit_passes() {
        let payload = commit(
            vec![token(1, None), token(0, Some(FinishReason::Stop))],
            &[1],
        );
        let commit = checked(&payload, &spec(2), Attempt(2), 50).unwrap();
        assert_eq!(commit.running_choices, [1]);
    }

    #[test]
    fn xfr_01_a_commit_that_contradicts_the_request_is_refused() {
        let one = spec(1);
        assert!(refusal(&[0xff; 9], &one).contains("does not decode"));
        assert!(refusal(&commit(vec![token(1, None)], &[1]), &one).contains("choice 1, of 1"));
        let twice = commit(vec![token(0, None), token(0, None)], &[0]);
        assert!(refusal(&twice, &one).contains("was not awaited"));
        let mut other = token(0, None);
        other.attempt = Attempt(1);
        assert!(refusal(&commit(vec![other], &[0]), &one).contains("attempt 1 instead of 2"));
        let mut far = token(0, None);
        far.position = 3;
        assert!(refusal(&commit(vec![far], &[0]), &one).contains("position 3"));
        let mut unknown = token(0, None);
        unknown.token_id = 50;
        assert!(refusal(&commit(vec![unknown], &[0]), &one).contains("token id 50 of 50"));
        assert!(refusal(&commit(vec![token(0, None)], &[]), &one).contains("go on"));
        let ended = commit(vec![token(0, Some(FinishReason::Stop))], &[]);
        assert!(refusal(&ended, &one).contains("go on"));
        assert!(refusal(&commit(vec![token(0, None)], &[0]), &spec(2)).contains("of choice 1"));
        let mut resumed = spec(1);
        resumed.completions = vec![ChoiceSoFar {
            token_ids: vec![4, 5],
            ended: false,
        }];
        let early = commit(vec![token(0, None)], &[0]);
        assert!(refusal(&early, &resumed).contains("instead of 2"));
        resumed.completions[0].ended = true;
        assert!(refusal(&early, &resumed).contains("was not awaited"));
    }
}
