//! Stop strings, matched while text arrives.
//!
//! The text is read byte by byte. The match that *ends* first wins; of several that end together, the
//! longest. So the cut depends on the text alone, never on how it came in pieces. Only a suffix that
//! could still begin a stop string is held back. Must not know of tokens.

use crate::TextError;

/// Most stop strings of one request.
pub const MAX_STOPS: usize = 4;
/// Longest stop string.
pub const MAX_STOP_BYTES: usize = 256;

/// Matcher for one stream of text.
#[derive(Debug, Clone)]
pub(crate) struct StopMatcher {
    stops: Vec<Stop>,
    /// Text that may be the beginning of a stop string.
    held: String,
    matched: bool,
}

/// Knuth, Morris and Pratt's automaton of one string.
#[derive(Debug, Clone)]
struct Stop {
    text: String,
    /// `fallback[n]`: longest proper border of the first `n + 1` bytes.
    fallback: Vec<usize>,
    /// Bytes of the stop string that the text currently ends with.
    state: usize,
}

impl StopMatcher {
    /// # Errors
    /// More than [`MAX_STOPS`] strings, an empty one, or one above [`MAX_STOP_BYTES`].
    pub(crate) fn new(stops: &[String]) -> Result<Self, TextError> {
        if stops.len() > MAX_STOPS {
            return Err(TextError::TooMany {
                what: "stop strings",
                count: stops.len(),
                limit: MAX_STOPS,
            });
        }
        let stops = stops
            .iter()
            .enumerate()
            .map(|(index, text)| Stop::new(index, text))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            stops,
            held: String::new(),
            matched: false,
        })
    }

    /// Takes more text; returns what may be sent, and the stop string if one has matched.
    pub(crate) fn push(&mut self, text: String) -> (String, Option<String>) {
        if self.matched {
            return (String::new(), None);
        }
        if self.stops.is_empty() {
            return (text, None);
        }
        let before = self.held.len();
        let mut all = std::mem::take(&mut self.held);
        all.push_str(&text);
        for end in before..all.len() {
            let byte = all.as_bytes()[end];
            let mut longest: Option<&Stop> = None;
            for stop in &mut self.stops {
                if stop.advance(byte) && longest.is_none_or(|l| l.text.len() < stop.text.len()) {
                    longest = Some(stop);
                }
            }
            if let Some(stop) = longest {
                let stopped = stop.text.clone();
                self.matched = true;
                all.truncate(end + 1 - stopped.len());
                return (all, Some(stopped));
            }
        }
        // The text ends with a whole character, so the prefix of a stop string that it ends with
        // begins at one too.
        let hold = self.stops.iter().map(|stop| stop.state).max().unwrap_or(0);
        self.held = all.split_off(all.len() - hold);
        (all, None)
    }

    /// Ends the text: what was held is not a stop string after all.
    pub(crate) fn finish(&mut self) -> String {
        self.matched = true;
        std::mem::take(&mut self.held)
    }
}

impl Stop {
    fn new(index: usize, text: &str) -> Result<Self, TextError> {
        if text.is_empty() {
            return Err(TextError::EmptyStop { index });
        }
        if text.len() > MAX_STOP_BYTES {
            return Err(TextError::TooLong {
                what: "a stop string",
                bytes: text.len(),
                limit: MAX_STOP_BYTES,
            });
        }
        let bytes = text.as_bytes();
        let mut fallback = vec![0; bytes.len()];
        let mut border = 0;
        for i in 1..bytes.len() {
            while border > 0 && bytes[i] != bytes[border] {
                border = fallback[border - 1];
            }
            if bytes[i] == bytes[border] {
                border += 1;
            }
            fallback[i] = border;
        }
        Ok(Self {
            text: text.to_owned(),
            fallback,
            state: 0,
        })
    }

    /// Takes one byte; whether the text now ends with the stop string.
    fn advance(&mut self, byte: u8) -> bool {
        let bytes = self.text.as_bytes();
        while self.state > 0 && bytes[self.state] != byte {
            self.state = self.fallback[self.state - 1];
        }
        if bytes[self.state] == byte {
            self.state += 1;
        }
        if self.state == bytes.len() {
            // Nothing follows a match, but the state stays in range.
            self.state = self.fallback[self.state - 1];
            return true;
        }
        false
    }
}
