//! Downloads from a faulty server: each ends in a complete, verified file or in
//! an error.
#![forbid(unsafe_code)]

mod care;
mod fetch;
mod server;

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use girih_hub::{HubEnv, ModelId, PullOptions, PullProgress, Pulled, find, pull};
use girih_tensor::{Error, ErrorKind, Random, Result};

use server::{BLOCK_BYTES, COMMIT, Fault, Repo, Server, blob_name};

const CONFIG: &[u8] = br#"{"model_type":"llama"}"#;
const WEIGHTS: &str = "model.safetensors";

/// 300,000 random bytes.
fn weights() -> Vec<u8> {
    Random(1).bytes(300_000)
}

fn repo() -> Repo {
    Repo::of(&[("config.json", CONFIG), (WEIGHTS, &weights()), ("pytorch_model.bin", b"no")])
}

/// A cache folder that is removed at the end of the test.
struct Cache(PathBuf);

impl Cache {
    fn new() -> Cache {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("hub-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Cache(path)
    }

    fn repo(&self) -> PathBuf {
        self.0.join("models--org--name")
    }

    fn blob(&self, file: &str, bytes: &[u8]) -> PathBuf {
        self.repo().join("blobs").join(blob_name(file, bytes))
    }

    fn partial(&self, file: &str, bytes: &[u8]) -> PathBuf {
        self.repo().join("blobs").join(format!("{}.girih-partial", blob_name(file, bytes)))
    }

    /// The path of a file for readers.
    fn file(&self, name: &str) -> PathBuf {
        self.repo().join("snapshots").join(COMMIT).join(name)
    }

    /// Checks that a download that failed at `name` has not published a model.
    fn assert_unpublished(&self, name: &str, bytes: &[u8]) {
        assert!(!self.blob(name, bytes).exists(), "{name} was given its final name");
        assert!(!self.repo().join("snapshots").exists(), "there is a snapshot");
        assert!(!self.repo().join("refs/main").exists(), "main points at a partial model");
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn id(text: &str) -> ModelId {
    ModelId::parse(text).unwrap()
}

/// The default options with shorter times.
fn options() -> PullOptions {
    PullOptions {
        connect_timeout: Duration::from_secs(2),
        stall_timeout: Duration::from_secs(5),
        lock_wait: Duration::from_millis(100),
        listing_timeout: Duration::from_secs(30),
        retries: 2,
        backoff: Duration::from_millis(1),
        wait_max: Duration::from_secs(2),
        ..PullOptions::default()
    }
}

fn pull_id(text: &str, cache: &Cache, server: &Server) -> Result<Pulled> {
    pull(&id(text), &HubEnv::new(&cache.0, server.url()), &options(), &mut |_| {})
}

fn pull_from(cache: &Cache, server: &Server) -> Result<Pulled> {
    pull_id("org/name", cache, server)
}

#[track_caller]
fn assert_says(result: Result<impl std::fmt::Debug>, sentence: &str) -> String {
    let error: Error = result.expect_err(sentence);
    assert!(error.to_string().contains(sentence), "{error}");
    error.to_string()
}

/// Pulls weights while the server injects these faults, and checks that they still arrive.
#[track_caller]
fn assert_survives(faults: impl IntoIterator<Item = Fault>) -> Server {
    let (cache, server) = (Cache::new(), Server::of_repo(&repo()));
    server.file_faults(WEIGHTS, faults);
    pull_from(&cache, &server).unwrap();
    assert!(fs::read(cache.file(WEIGHTS)).unwrap() == weights());
    server
}

/// Pulls weights while the server injects these faults, and checks that the pull fails with
/// this error.
#[track_caller]
fn assert_refused(faults: impl IntoIterator<Item = Fault>, sentence: &str) -> Server {
    assert_refused_with(&options(), faults, sentence)
}

/// As [`assert_refused`], with these options.
#[track_caller]
fn assert_refused_with(
    options: &PullOptions,
    faults: impl IntoIterator<Item = Fault>,
    sentence: &str,
) -> Server {
    let (cache, server) = (Cache::new(), Server::of_repo(&repo()));
    server.file_faults(WEIGHTS, faults);
    let pulled = pull(&id("org/name"), &HubEnv::new(&cache.0, server.url()), options, &mut |_| {});
    let error = assert_says(pulled, sentence);
    assert!(error.starts_with("org/name: model.safetensors: "), "{error}");
    cache.assert_unpublished(WEIGHTS, &weights());
    server
}

#[test]
fn a_pull_writes_the_layout_that_other_tools_read() {
    let (cache, server) = (Cache::new(), Server::of_repo(&repo()));
    let mut events = Vec::new();
    let env = HubEnv::new(&cache.0, server.url());
    let pulled =
        pull(&id("org/name"), &env, &options(), &mut |event| events.push(format!("{event:?}"))).unwrap();

    assert_eq!((pulled.files, pulled.bytes, pulled.fetched), (2, 300_022, 300_022));
    assert_eq!(fs::read_to_string(cache.repo().join("refs/main")).unwrap(), COMMIT);
    for (name, bytes) in [("config.json", CONFIG.to_vec()), (WEIGHTS, weights())] {
        let target = format!("../../blobs/{}", blob_name(name, &bytes));
        assert_eq!(fs::read_link(cache.file(name)).unwrap(), Path::new(&target));
        assert!(fs::read(cache.file(name)).unwrap() == bytes);
    }
    assert!(!cache.file("pytorch_model.bin").exists() && server.requests(".bin").is_empty());
    assert_eq!(find(&id("org/name"), &env).unwrap(), pulled.snapshot);
    assert!(events.first().unwrap().starts_with("Planned"), "{events:?}");
    assert!(events.iter().any(|event| event.starts_with("Received")), "{events:?}");
}

#[test]
fn a_second_pull_downloads_nothing() {
    let (cache, server) = (Cache::new(), Server::of_repo(&repo()));
    pull_from(&cache, &server).unwrap();
    assert_eq!(pull_from(&cache, &server).unwrap().fetched, 0);
    assert_eq!(server.requests(WEIGHTS).len(), 1);
}

#[test]
fn pulling_a_commit_writes_no_ref_and_keeps_folders() {
    let gguf = weights();
    let server = Server::of_repo(&Repo::of(&[("Q8_0/m-Q8_0.gguf", &gguf), ("m-Q4_0.gguf", b"other")]));
    let cache = Cache::new();
    let pulled = pull_id(&format!("org/name@{COMMIT}:q8_0"), &cache, &server).unwrap();
    assert_eq!(pulled.snapshot.path(), cache.file("Q8_0/m-Q8_0.gguf"));
    assert!(fs::read(pulled.snapshot.path()).unwrap() == gguf);
    assert!(!cache.repo().join("refs").exists() && server.requests("m-Q4_0.gguf").is_empty());
    assert_says(pull_id("org/name:Q6_K", &cache, &server), "no GGUF file for Q6_K");
    assert_eq!(pull_id("org/name:Q6_K", &cache, &server).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn without_a_label_the_preferred_gguf_is_pulled_and_found_again() {
    let gguf = weights();
    let server = Server::of_repo(&Repo::of(&[("m-Q8_0.gguf", b"other"), ("m-Q4_K_M.gguf", &gguf)]));
    let (cache, mut said) = (Cache::new(), Vec::new());
    let env = HubEnv::new(&cache.0, server.url());
    let mut note = |event: PullProgress<'_>| {
        if let PullProgress::Chosen(choice) = event {
            said.push(format!("{} {}", choice.label, choice.others));
        }
    };
    let pulled = pull(&id("org/name"), &env, &options(), &mut note).unwrap();
    assert_eq!(pulled.snapshot.path(), cache.file("m-Q4_K_M.gguf"));
    assert_eq!(said, ["Q4_K_M Q8_0"]);
    assert!(server.requests("m-Q8_0.gguf").is_empty());
    // The only file in the cache leaves no choice.
    assert_eq!(find(&id("org/name"), &env).unwrap().choice, None);
    pull_id("org/name:Q8_0", &cache, &server).unwrap();
    let found = find(&id("org/name"), &env).unwrap();
    assert_eq!(found.path(), cache.file("m-Q4_K_M.gguf"));
    assert_eq!(found.choice.unwrap().others, "Q8_0");
    assert_says(find(&id("org/name:Q4_K_N"), &env), "did you mean Q4_K_M?");
}

#[test]
fn a_page_of_the_server_is_pulled_like_its_id() {
    let server = Server::of_repo(&Repo::of(&[("a/m-Q8_0.gguf", b"1"), ("b/m-Q8_0.gguf", b"2")]));
    let cache = Cache::new();
    let page = format!("{}/org/name/blob/main/b/m-Q8_0.gguf", server.url());
    let id = ModelId::parse_at(&page, &server.url()).unwrap();
    let env = HubEnv::new(&cache.0, server.url());
    let pulled = pull(&id, &env, &options(), &mut |_| {}).unwrap();
    assert_eq!(fs::read(pulled.snapshot.path()).unwrap(), b"2");
    let error = pull_id("org/name", &cache, &server).unwrap_err();
    assert!(error.to_string().contains("several GGUF models with Q8_0"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Refused);
}

#[test]
fn a_host_without_an_address_is_not_asked_again() {
    let cache = Cache::new();
    let env = HubEnv::new(&cache.0, "https://name.invalid");
    let begun = Instant::now();
    let seconds = Duration::from_secs;
    let patient = PullOptions { retries: 5, backoff: seconds(5), wait_max: seconds(60), ..options() };
    let result = pull(&id("org/name"), &env, &patient, &mut |_| {});
    assert_says(result, "the host name.invalid cannot be resolved");
    // Five retries would take over two minutes; resolving may take seconds.
    assert!(begun.elapsed() < seconds(10), "{:?}", begun.elapsed());
}

#[test]
fn resumed_bytes_do_not_count_as_fetched() {
    let (cache, server) = (Cache::new(), Server::of_repo(&repo()));
    fs::create_dir_all(cache.repo().join("blobs")).unwrap();
    fs::write(cache.partial(WEIGHTS, &weights()), &weights()[..200_000]).unwrap();
    let (mut present, mut left) = (0, Vec::new());
    let mut note = |event: PullProgress<'_>| match event {
        PullProgress::Planned { present: found, .. } => present = found,
        PullProgress::Received { left: rest, .. } => left.push(rest),
        _ => {}
    };
    let env = HubEnv::new(&cache.0, server.url());
    let pulled = pull(&id("org/name"), &env, &options(), &mut note).unwrap();
    assert_eq!((pulled.bytes, pulled.fetched, present), (300_022, 100_022, 200_000));
    // The configuration comes first, with all the weights that lack still to arrive.
    assert_eq!((left.first(), left.last()), (Some(&100_000), Some(&0)));
    assert!(left.is_sorted_by(|before, after| before > after), "{left:?}");
}

#[test]
fn a_cut_download_is_resumed_at_once() {
    let server = assert_survives([Fault::CutAfter(100_000)]);
    let requests = server.requests(WEIGHTS);
    assert_eq!(requests.len(), 2);
    assert_eq!(requests[1].header("range"), Some("bytes=100000-"));
}

#[test]
fn a_cut_download_is_resumed_by_the_next_pull() {
    let (cache, server) = (Cache::new(), Server::of_repo(&repo()));
    server.file_faults(WEIGHTS, [Fault::CutAfter(123_456)]);
    let env = HubEnv::new(&cache.0, server.url());
    let impatient = PullOptions { retries: 0, ..options() };
    assert_says(pull(&id("org/name"), &env, &impatient, &mut |_| {}), "the connection broke");
    cache.assert_unpublished(WEIGHTS, &weights());
    assert_eq!(fs::metadata(cache.partial(WEIGHTS, &weights())).unwrap().len(), 123_456);

    pull_from(&cache, &server).unwrap();
    assert_eq!(server.requests(WEIGHTS)[1].header("range"), Some("bytes=123456-"));
    assert!(fs::read(cache.file(WEIGHTS)).unwrap() == weights());
    assert!(!cache.partial(WEIGHTS, &weights()).exists());
}

#[test]
fn a_partial_file_of_wrong_bytes_is_downloaded_again() {
    let (cache, server) = (Cache::new(), Server::of_repo(&repo()));
    fs::create_dir_all(cache.repo().join("blobs")).unwrap();
    fs::write(cache.partial(WEIGHTS, &weights()), vec![0; 1000]).unwrap();
    pull_from(&cache, &server).unwrap();
    let ranges: Vec<_> =
        server.requests(WEIGHTS).iter().map(|r| r.header("range").map(str::to_owned)).collect();
    assert_eq!(ranges, [Some("bytes=1000-".to_owned()), None]);
    assert!(fs::read(cache.file(WEIGHTS)).unwrap() == weights());
}

#[test]
fn a_complete_partial_file_is_published_only_with_the_right_digest() {
    for (left, requests) in [(weights(), 0), (vec![0; 300_000], 1), (vec![0; 300_001], 1)] {
        let (cache, server) = (Cache::new(), Server::of_repo(&repo()));
        fs::create_dir_all(cache.repo().join("blobs")).unwrap();
        fs::write(cache.partial(WEIGHTS, &weights()), left).unwrap();
        pull_from(&cache, &server).unwrap();
        assert_eq!(server.requests(WEIGHTS).len(), requests);
        assert!(fs::read(cache.file(WEIGHTS)).unwrap() == weights());
    }
}

#[test]
fn an_ignored_range_restarts_from_zero() {
    let server = assert_survives([Fault::CutAfter(100_000), Fault::IgnoreRange]);
    assert_eq!(server.requests(WEIGHTS).len(), 2);
}

#[test]
fn a_wrong_content_range_restarts_from_zero() {
    for lie in ["bytes 0-199999/300000", "bytes 100000-299999/300001", "bytes */300000", "nonsense"] {
        let server = assert_survives([Fault::CutAfter(100_000), Fault::ClaimRange(lie)]);
        let last = server.requests(WEIGHTS).pop().unwrap();
        assert_eq!(last.header("range"), None, "{lie}");
    }
}

#[test]
fn a_range_that_the_server_lacks_restarts_from_zero() {
    assert_survives([Fault::CutAfter(100_000), Fault::Status(416, "")]);
}

#[test]
fn a_content_length_that_disagrees_with_the_listing_is_refused() {
    assert_refused([Fault::ClaimLength(299_999)], "announces 299999 bytes, but 300000 are needed");
    assert_refused([Fault::ClaimLength(300_001)], "announces 300001 bytes, but 300000 are needed");
}

#[test]
fn a_body_longer_than_the_file_is_discarded() {
    assert_refused([Fault::OneTooMany], "sends more than the 300000 bytes of the file; it was discarded");
}

#[test]
fn an_endless_body_is_not_read_to_its_end() {
    assert_refused([Fault::Endless], "sends more than the 300000 bytes of the file");
}

#[test]
fn wrong_bytes_are_discarded() {
    let server = assert_refused([Fault::WrongBytes], "and was discarded; a proxy may have changed it");
    assert_eq!(server.requests(WEIGHTS).len(), 1);
}

#[test]
fn wrong_bytes_of_a_small_file_are_discarded_by_its_git_digest() {
    let (cache, server) = (Cache::new(), Server::of_repo(&repo()));
    server.file_faults("config.json", [Fault::WrongBytes]);
    assert_says(pull_from(&cache, &server), "org/name: config.json: the file has the digest");
    cache.assert_unpublished("config.json", CONFIG);
    assert!(!cache.partial("config.json", CONFIG).exists());
}

#[test]
fn an_etag_that_contradicts_the_listing_is_refused() {
    let etag = format!("X-Linked-Etag: \"{}\"\r\n", "0".repeat(64));
    assert_refused([Fault::Etag(etag)], "the server's etag is 0000");
}

#[test]
fn server_errors_are_retried() {
    let server = assert_survives([Fault::Status(500, ""), Fault::HangUp]);
    assert_eq!(server.requests(WEIGHTS).len(), 3);
}

#[test]
fn repeated_server_errors_end_the_pull() {
    let server =
        assert_refused(vec![Fault::Status(503, ""); 9], "answers 503: a server error (tried 3 times");
    assert_eq!(server.requests(WEIGHTS).len(), 3);
}

#[test]
fn retry_after_is_obeyed() {
    let start = Instant::now();
    assert_survives([Fault::Status(429, "Retry-After: 1\r\n")]);
    assert!(start.elapsed() >= Duration::from_secs(1));
}

#[test]
fn a_retry_after_beyond_the_cap_ends_the_pull() {
    let server = assert_refused([Fault::Status(429, "Retry-After: 3600\r\n")], "Retry-After is 3600 s");
    assert_eq!(server.requests(WEIGHTS).len(), 1);
}

#[test]
fn client_errors_are_not_retried_and_say_what_to_do() {
    for (status, sentence) in
        [(401, "set HF_TOKEN"), (403, "accept the model's terms"), (404, "check the id"), (418, "418")]
    {
        let (cache, server) = (Cache::new(), Server::of_repo(&repo()));
        let listing = "/api/models/org/name/revision/main";
        server.faults(listing, [Fault::Status(status, "")]);
        let error = pull_from(&cache, &server).unwrap_err();
        assert!(error.to_string().contains(sentence), "{error}");
        assert_eq!(error.kind() == ErrorKind::NotFound, status == 404, "{error}");
        assert_eq!(server.requests("main").len(), 1);
        assert!(!cache.repo().exists());
    }
}

#[test]
fn blocks_at_long_intervals_are_too_slow() {
    let (cache, server) = (Cache::new(), Server::of_repo(&repo()));
    // 80 KiB in a second are progress, but less than the least rate here.
    server.file_faults(WEIGHTS, [Fault::Blocks, Fault::Blocks, Fault::Blocks]);
    let options =
        PullOptions { rate_window: Duration::from_millis(500), rate_min: 1 << 20, retries: 2, ..options() };
    let env = HubEnv::new(&cache.0, server.url());
    let error = assert_says(pull(&id("org/name"), &env, &options, &mut |_| {}), "too little progress");
    assert!(
        error.contains("in 500ms; 524288 are needed") && error.contains("pull again to continue"),
        "{error}"
    );
    // What arrived is kept, and the next pull resumes it.
    assert!(fs::metadata(cache.partial(WEIGHTS, &weights())).unwrap().len() > 0);
    pull_from(&cache, &server).unwrap();
    assert!(fs::read(cache.file(WEIGHTS)).unwrap() == weights());
}

#[test]
fn a_listing_that_takes_too_long_ends_the_pull() {
    // It takes 12 seconds to send.
    const LISTING_BYTES: usize = 1_000_000;
    let (cache, server) = (Cache::new(), Server::of_listing(vec![b' '; LISTING_BYTES]));
    server.faults("/api/models/org/name/revision/main", [Fault::Blocks]);
    let options = PullOptions { listing_timeout: Duration::from_millis(300), ..options() };
    let env = HubEnv::new(&cache.0, server.url());
    let pulled = pull(&id("org/name"), &env, &options, &mut |_| {});
    assert_says(pulled, "did not send the list of files within 300ms");
    let (sent, all) = (server.blocks(), LISTING_BYTES.div_ceil(BLOCK_BYTES));
    assert!(sent < all, "the whole listing was sent: {sent} of {all} blocks");
    assert_eq!(server.requests("main").len(), 1);
}

#[test]
fn retries_of_sizes_and_digests_end_with_the_time_of_the_listing() {
    let repo = Repo { terse: true, ..Repo::of(&[(WEIGHTS, &weights())]) };
    let (cache, server) = (Cache::new(), Server::of_repo(&repo));
    server.file_faults(WEIGHTS, [Fault::Status(503, "Retry-After: 30\r\n")]);
    let seconds = Duration::from_secs;
    let options = PullOptions { listing_timeout: seconds(20), wait_max: seconds(60), ..options() };
    let start = Instant::now();
    let env = HubEnv::new(&cache.0, server.url());
    let pulled = pull(&id("org/name"), &env, &options, &mut |_| {});
    assert_says(pulled, "did not send the list of files within 20s");
    assert!(start.elapsed() < seconds(10), "{:?}", start.elapsed());
    assert_eq!(server.requests(WEIGHTS).len(), 1);
}

/// Options under which a server may stall for a moment only.
fn impatient() -> PullOptions {
    PullOptions { stall_timeout: Duration::from_millis(400), ..options() }
}

#[test]
fn a_slow_trickle_counts_as_no_progress() {
    assert_refused_with(&impatient(), vec![Fault::Trickle; 3], "too little progress");
}

#[test]
fn silence_ends_with_the_timeout() {
    assert_refused_with(&impatient(), vec![Fault::Silence; 3], "no progress within the timeout");
}

#[test]
fn refused_connections_end_the_pull() {
    let cache = Cache::new();
    // The port of a connection is taken, and nobody listens on it.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let gone = format!("http://{}", taken.local_addr().unwrap());
    let result = pull(&id("org/name"), &HubEnv::new(&cache.0, gone), &options(), &mut |_| {});
    assert_says(result, "cannot connect (Connection refused");
}

#[test]
fn redirect_loops_end() {
    let (cache, server) = (Cache::new(), Server::of_repo(&repo()));
    let path = format!("/org/name/resolve/{COMMIT}/{WEIGHTS}");
    server.file_faults(WEIGHTS, vec![Fault::Redirect(path); 20]);
    assert_says(pull_from(&cache, &server), "more than 5 redirects");
    assert_eq!(server.requests(WEIGHTS).len(), 6);
    cache.assert_unpublished(WEIGHTS, &weights());
}

#[test]
fn redirects_away_from_https_are_refused() {
    for (to, sentence) in [
        ("http://192.0.2.1/x", "which is not https"),
        ("file:///etc/passwd", "its scheme is \"file\""),
        ("http://user@127.0.0.1/x", "not a plain host name"),
    ] {
        assert_refused([Fault::Redirect(to.to_owned())], sentence);
    }
}

#[test]
fn the_token_goes_to_the_endpoint_only() {
    let storage = Server::start([("/signed".to_owned(), weights())].into());
    let (cache, server) = (Cache::new(), Server::of_repo(&repo()));
    server.file_faults(WEIGHTS, [Fault::Redirect(format!("{}/signed?key=secret", storage.url()))]);
    let same_host = format!("/org/name/resolve/{COMMIT}/config.json");
    server.file_faults("config.json", [Fault::Redirect(same_host)]);
    let env = HubEnv { token: Some("hf_secret".to_owned()), ..HubEnv::new(&cache.0, server.url()) };
    pull(&id("org/name"), &env, &options(), &mut |_| {}).unwrap();

    assert!(fs::read(cache.file(WEIGHTS)).unwrap() == weights());
    let asked = server.requests("");
    assert_eq!(asked.len(), 4);
    assert!(
        asked.iter().all(|request| request.header("authorization") == Some("Bearer hf_secret")),
        "{asked:?}"
    );
    let asked = storage.requests("");
    assert_eq!(asked.len(), 1);
    assert_eq!(asked[0].header("authorization"), None);
    assert!(asked[0].header("user-agent").unwrap().starts_with("girih/"));
}

#[test]
fn errors_of_a_storage_host_hide_the_signature() {
    let storage = Server::start([("/signed".to_owned(), weights())].into());
    let (cache, server) = (Cache::new(), Server::of_repo(&repo()));
    storage.faults("/signed", vec![Fault::Status(403, ""); 3]);
    server.file_faults(WEIGHTS, vec![Fault::Redirect(format!("{}/signed?key=secret", storage.url())); 3]);
    let error = assert_says(pull_from(&cache, &server), "/signed: the server answers 403");
    assert!(!error.contains("secret"), "{error}");
}

#[test]
fn an_expired_signed_address_is_requested_again() {
    let storage = Server::start([("/signed".to_owned(), weights())].into());
    let (cache, server) = (Cache::new(), Server::of_repo(&repo()));
    storage.faults("/signed", [Fault::Status(403, "")]);
    server.file_faults(WEIGHTS, vec![Fault::Redirect(format!("{}/signed", storage.url())); 2]);
    pull_from(&cache, &server).unwrap();
    assert_eq!((server.requests(WEIGHTS).len(), storage.requests("/signed").len()), (2, 2));
}

#[test]
fn a_repository_with_names_outside_the_snapshot_is_refused() {
    for name in
        ["../../../evil.safetensors", "/etc/evil.json", "a/../../b.safetensors", "a\\\\b", "a\\u0000b"]
    {
        let listing = format!(r#"{{"sha":"{COMMIT}","siblings":[{{"rfilename":"{name}","size":1}}]}}"#);
        let (cache, server) = (Cache::new(), Server::of_listing(listing));
        assert_says(pull_from(&cache, &server), "such a repository is not downloaded");
        assert!(!cache.repo().exists(), "{name}");
    }
}

#[test]
fn a_listing_beyond_the_cap_is_not_read() {
    let server = Server::of_listing(vec![b' '; (16 << 20) + 1]);
    assert_says(pull_from(&Cache::new(), &server), "longer than the cap of 16777216 bytes");
}

#[test]
fn an_invalid_listing_is_refused() {
    let invalid = ["", "{", "<html>", r#"{"sha":"main","siblings":[]}"#];
    for listing in invalid {
        let error = pull_from(&Cache::new(), &Server::of_listing(listing)).unwrap_err().to_string();
        assert!(error.contains("not what the hub sends") || error.contains("is not a commit"), "{error}");
    }
    let empty = Server::of_listing(format!(r#"{{"sha":"{COMMIT}","siblings":[]}}"#));
    assert_says(pull_from(&Cache::new(), &empty), "neither safetensors nor GGUF");
}

#[test]
fn a_listing_of_another_commit_is_refused() {
    let other = "f".repeat(40);
    let listing = format!(r#"{{"sha":"{COMMIT}","siblings":[]}}"#);
    let routes = [(format!("/api/models/org/name/revision/{other}"), listing.into_bytes())];
    let result = pull_id(&format!("org/name@{other}"), &Cache::new(), &Server::start(routes.into()));
    assert_says(result, "instead of ffffffff");
}

#[test]
fn missing_sizes_and_digests_are_read_from_headers() {
    let repo = Repo { terse: true, ..Repo::of(&[(WEIGHTS, &weights())]) };
    let (cache, server) = (Cache::new(), Server::of_repo(&repo));
    pull_from(&cache, &server).unwrap();
    assert_eq!(server.requests(WEIGHTS)[0].method, "HEAD");
    assert!(fs::read(cache.blob(WEIGHTS, &weights())).unwrap() == weights());
}

#[test]
fn a_file_without_any_digest_is_refused() {
    let repo = Repo { terse: true, ..Repo::of(&[(WEIGHTS, &weights())]) };
    for etag in ["", "ETag: \"../../evil\"\r\n", "ETag: W/\"abc\"\r\n"] {
        let (cache, server) = (Cache::new(), Server::of_repo(&repo));
        server.file_faults(WEIGHTS, [Fault::Etag(etag.to_owned())]);
        assert_says(pull_from(&cache, &server), "sends no sha256 or git digest");
        cache.assert_unpublished(WEIGHTS, &weights());
    }
}

#[test]
fn a_download_larger_than_the_free_space_is_not_started() {
    let digest = "0".repeat(64);
    let sibling = |name: &str, size: u64| {
        format!(r#"{{"rfilename":"{name}","size":{size},"lfs":{{"sha256":"{digest}","size":{size}}}}}"#)
    };
    let listing = |siblings: String| format!(r#"{{"sha":"{COMMIT}","siblings":[{siblings}]}}"#);
    let (cache, server) = (Cache::new(), Server::of_listing(listing(sibling(WEIGHTS, 1 << 60))));
    assert_says(pull_from(&cache, &server), "needs 1152921504606846976 bytes, but the disk");
    assert!(server.requests(WEIGHTS).is_empty());
    let two = [sibling("a.safetensors", u64::MAX), sibling("b.safetensors", 1)].join(",");
    assert_says(pull_from(&cache, &Server::of_listing(listing(two))), "exceeds 2^64");
}

#[test]
fn offline_sends_no_request() {
    let (cache, server) = (Cache::new(), Server::of_repo(&repo()));
    let env = HubEnv { offline: true, ..HubEnv::new(&cache.0, server.url()) };
    assert_says(pull(&id("org/name"), &env, &options(), &mut |_| {}), "HF_HUB_OFFLINE is set");
    assert!(server.requests("").is_empty());
}

#[test]
fn a_model_locked_by_another_process_is_not_pulled() {
    let (cache, server) = (Cache::new(), Server::of_repo(&repo()));
    let folder = cache.0.join(".locks/models--org--name");
    fs::create_dir_all(&folder).unwrap();
    let held = fs::File::create(folder.join("girih.lock")).unwrap();
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).unwrap();
    assert_says(pull_from(&cache, &server), "another process is changing this model");
    assert!(server.requests(WEIGHTS).is_empty());
    drop(held);
    pull_from(&cache, &server).unwrap();
}

#[test]
fn retries_are_reported() {
    let (cache, server) = (Cache::new(), Server::of_repo(&repo()));
    server.file_faults(WEIGHTS, [Fault::CutAfter(5)]);
    let mut retries = 0;
    let mut count =
        |event: PullProgress<'_>| retries += u32::from(matches!(event, PullProgress::Retrying { .. }));
    pull(&id("org/name"), &HubEnv::new(&cache.0, server.url()), &options(), &mut count).unwrap();
    assert_eq!(retries, 1);
}
