//! A scrape of one process's metrics, read as Prometheus reads it, and Prometheus's own tools.

#![expect(
    clippy::float_cmp,
    reason = "counts are whole numbers, which floats hold exactly"
)]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::process::PATIENCE;

/// The text and its series.
#[derive(Debug)]
pub(crate) struct Scrape {
    pub(crate) text: String,
    series: BTreeMap<String, f64>,
}

impl Scrape {
    /// Of the metrics port at this address.
    pub(crate) fn of(address: &str) -> Self {
        let (status, text) = get(address, "/metrics", "");
        assert_eq!(status, 200, "{text}");
        Self::read(text)
    }

    /// What a text says; every line must be one that Prometheus understands.
    pub(crate) fn read(text: String) -> Self {
        let mut series = BTreeMap::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (name, value) = line.rsplit_once(' ').expect("a series and its value");
            let value = value.parse().expect("a number");
            assert!(
                series.insert(name.to_owned(), value).is_none(),
                "{name} twice"
            );
        }
        Self { text, series }
    }

    /// The value of a series, with its labels as they stand in the text.
    pub(crate) fn value(&self, series: &str) -> f64 {
        *self.series.get(series).unwrap_or_else(|| {
            panic!("no series {series} in\n{}", self.text);
        })
    }

    /// The sum over all series of a metric whose labels contain these words.
    pub(crate) fn sum(&self, metric: &str, labels: &[&str]) -> f64 {
        let of_metric = self.series.iter().filter(|(name, _)| {
            let (own, rest) = name.split_once('{').unwrap_or((name, ""));
            own == metric && labels.iter().all(|label| rest.contains(label))
        });
        of_metric.map(|(_, value)| value).sum()
    }

    /// Names of series, with their labels.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.series.keys().map(String::as_str)
    }

    /// Names of metrics.
    pub(crate) fn metrics(&self) -> impl Iterator<Item = &str> {
        let types = self
            .text
            .lines()
            .filter_map(|line| line.strip_prefix("# TYPE "));
        types.filter_map(|line| line.split(' ').next())
    }

    /// Pages are conserved.
    pub(crate) fn assert_conserved(&self) {
        let pages = self.sum("baton_pages", &[]);
        assert_eq!(pages, self.value("baton_page_pool_pages"), "{}", self.text);
    }
}

/// Scrapes until what it shows is as wanted.
pub(crate) fn until(address: &str, what: &str, wanted: impl Fn(&Scrape) -> bool) -> Scrape {
    let begin = Instant::now();
    loop {
        let scrape = Scrape::of(address);
        if wanted(&scrape) {
            return scrape;
        }
        assert!(begin.elapsed() < PATIENCE, "never {what}:\n{}", scrape.text);
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Gets a path over HTTP/1.1; status and body.
pub(crate) fn get(address: &str, path: &str, head: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream
        .set_read_timeout(Some(PATIENCE))
        .expect("a time that is not zero");
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{head}\r\n");
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    (status.expect("a status"), body.to_owned())
}

/// A program of the Prometheus package: the one that `scripts/setup.sh test` fetched, or the system's.
pub(crate) fn tool(name: &str) -> PathBuf {
    let cache = std::env::var_os("BATON_MODEL_DIR").map_or_else(
        || PathBuf::from(std::env::var_os("HOME").expect("HOME")).join(".cache/baton"),
        PathBuf::from,
    );
    let fetched = cache.join("prometheus").join(name);
    if fetched.exists() {
        fetched
    } else {
        PathBuf::from(name)
    }
}

/// What `promtool check metrics` has against a text, line by line. Names of other engines, which gateways
/// ask for, have a colon in them; that alone is accepted.
pub(crate) fn complaints(text: &str) -> Vec<String> {
    let mut check = Command::new(tool("promtool"))
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool starts; `scripts/setup.sh test` fetches it");
    let mut stdin = check.stdin.take().expect("piped");
    stdin.write_all(text.as_bytes()).expect("it reads");
    drop(stdin);
    let ended = check.wait_with_output().expect("it ends");
    let said = [ended.stdout, ended.stderr].concat();
    let said = String::from_utf8(said).expect("text");
    let accepted =
        |line: &str| line.starts_with("vllm:") && line.ends_with("should not contain ':'");
    let lines = said.lines().filter(|line| !line.is_empty());
    let complaints: Vec<String> = lines
        .filter(|line| !accepted(line))
        .map(str::to_owned)
        .collect();
    let aliases = text.contains("\nvllm:");
    assert!(
        ended.status.success() || aliases || !complaints.is_empty(),
        "promtool failed without a word"
    );
    complaints
}
