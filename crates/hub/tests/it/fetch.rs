//! Fetching what a stranger names: every address is checked, redirects too, and bytes and time are bounded. The names and
//! the check are the tests' own, so that no test needs a network.

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use girih_hub::{FetchLimits, FetchNetwork, fetch, is_public};
use girih_tensor::ErrorKind;

const LIMITS: FetchLimits = FetchLimits { bytes: 1000, time: Duration::from_secs(5) };

/// The only address that the tests allow.
const PUBLIC: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Starts a server on loopback whose answers the paths choose, and returns its port.
fn server() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || answer(stream));
        }
    });
    port
}

/// Answers one request.
fn answer(mut stream: TcpStream) {
    let mut lines = BufReader::new(stream.try_clone().expect("a stream")).lines().map_while(Result::ok);
    let request = lines.next().unwrap_or_default();
    let headers: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
    let path = request.split(' ').nth(1).unwrap_or_default();
    let head = |status: &str, more: &str| format!("HTTP/1.1 {status}\r\nConnection: close\r\n{more}\r\n");
    let response = match path.split_once('=') {
        Some(("/to", target)) => head("302 Found", &format!("Location: {target}\r\nContent-Length: 0\r\n")),
        Some(("/size", size)) => {
            head("200 OK", &format!("Content-Length: {size}\r\n"))
                + &"a".repeat(size.parse().expect("a size"))
        }
        Some(("/endless", _)) => head("200 OK", "") + &"a".repeat(5000),
        Some(("/headers", _)) => head("200 OK", "Content-Length: 0\r\n") + &headers.join("\n"),
        Some(("/slow", _)) => {
            // The client may be gone.
            let _ = stream.write_all(head("200 OK", "Content-Length: 900\r\n").as_bytes());
            for _ in 0..900 {
                thread::sleep(Duration::from_millis(20));
                if stream.write_all(b"a").is_err() {
                    return;
                }
            }
            return;
        }
        Some(("/echo", _)) => {
            let text = headers.join("\n");
            head("200 OK", &format!("Content-Length: {}\r\n", text.len())) + &text
        }
        _ => head("404 Not Found", "Content-Length: 0\r\n"),
    };
    let _ = stream.write_all(response.as_bytes());
}

/// `pictures.example` is the tests' server, `private.example` is not public, and other names have no address.
fn lookup(name: &str, port: u16) -> std::io::Result<Vec<SocketAddr>> {
    match name {
        "pictures.example" => {
            Ok(vec![SocketAddr::new([10, 0, 0, 1].into(), port), SocketAddr::new(PUBLIC, port)])
        }
        "private.example" => Ok(vec![SocketAddr::new([10, 0, 0, 1].into(), port)]),
        _ => Err(std::io::ErrorKind::NotFound.into()),
    }
}

fn network() -> FetchNetwork<'static> {
    FetchNetwork { lookup: &lookup, allows: |address| address == PUBLIC }
}

/// The sentence with which a fetch is refused.
fn refusal(url: &str, limits: FetchLimits) -> String {
    let error = fetch(url, limits, network()).expect_err(url);
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    error.to_string()
}

#[test]
fn a_file_is_fetched_and_little_is_told() {
    let port = server();
    let fetched = |path: &str| fetch(&format!("http://pictures.example:{port}{path}"), LIMITS, network());
    assert_eq!(fetched("/size=1000").expect("it is there"), vec![b'a'; 1000]);
    assert_eq!(fetched("/to=/size=3").expect("it is there"), b"aaa");
    let told = String::from_utf8(fetched("/echo=").expect("it is there")).expect("text").to_lowercase();
    assert!(told.contains(&format!("host: pictures.example:{port}")), "{told}");
    for header in ["cookie", "authorization", "referer"] {
        assert!(!told.contains(header), "{told}");
    }
}

#[test]
fn bytes_and_time_are_bounded() {
    let port = server();
    let at = |path: &str| format!("http://pictures.example:{port}{path}");
    assert!(refusal(&at("/size=1001"), LIMITS).ends_with("has more than 1000 bytes, the maximum"));
    assert!(refusal(&at("/endless="), LIMITS).ends_with("has more than 1000 bytes, the maximum"));
    assert!(refusal(&at("/none"), LIMITS).ends_with("its server answers 404"));
    let begun = Instant::now();
    let short = FetchLimits { time: Duration::from_millis(300), ..LIMITS };
    refusal(&at("/slow="), short);
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    assert!(refusal(&format!("http://{}", "a".repeat(5000)), LIMITS).contains("the maximum is 4096"));
}

#[test]
fn no_address_but_a_public_one_is_reached() {
    let port = server();
    let none = "cannot be fetched: its host has no public address";
    for host in [
        "private.example",
        "unknown.example",
        "127.0.0.2",
        "127.2",
        "0x7f000002",
        "[::ffff:127.0.0.2]",
        "[::1]",
        "169.254.169.254",
    ] {
        let sentence = refusal(&format!("http://{host}:{port}/size=1"), LIMITS);
        assert!(sentence.ends_with(none), "{host}: {sentence}");
        let sentence =
            refusal(&format!("http://pictures.example:{port}/to=http://{host}:{port}/size=1"), LIMITS);
        assert!(sentence.ends_with(none), "a redirect to {host}: {sentence}");
    }
    // What the public one allows is the definition of its own test.
    let public = FetchNetwork { lookup: &lookup, allows: is_public };
    let error =
        fetch(&format!("http://pictures.example:{port}/size=1"), LIMITS, public).expect_err("loopback");
    assert!(error.to_string().ends_with(none), "{error}");
}

/// A name that has another address when it is asked for again (DNS rebinding): it is asked for once.
#[test]
fn the_checked_address_is_the_one_connected_to() {
    let port = server();
    let asked = AtomicU32::new(0);
    let rebinding = |_: &str, port: u16| match asked.fetch_add(1, Ordering::Relaxed) {
        0 => Ok(vec![SocketAddr::new(PUBLIC, port)]),
        _ => Ok(vec![SocketAddr::new([10, 0, 0, 1].into(), port)]),
    };
    let network = FetchNetwork { lookup: &rebinding, ..network() };
    let url = format!("http://rebound.example:{port}/size=2");
    assert_eq!(fetch(&url, LIMITS, network).expect("it is there"), b"aa");
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    let error = fetch(&url, LIMITS, network).expect_err("another address");
    assert!(error.to_string().contains("no public address"), "{error}");
}

#[test]
fn redirects_are_few_and_stay_in_http() {
    let port = server();
    let nested = |times: usize| format!("http://pictures.example:{port}{}/size=1", "/to=".repeat(times));
    assert!(fetch(&nested(3), LIMITS, network()).is_ok());
    assert!(refusal(&nested(4), LIMITS).ends_with("after more than 3 redirects"));
    for target in ["file:///etc/passwd", "ftp://pictures.example/", "http://user@pictures.example/", ""] {
        let sentence = refusal(&format!("http://pictures.example:{port}/to={target}"), LIMITS);
        assert!(sentence.contains("redirects"), "{target}: {sentence}");
    }
    for url in [
        "ftp://pictures.example/a",
        "file:///etc/passwd",
        "pictures.example",
        "http://a@pictures.example/",
        "http:///etc",
    ] {
        assert!(refusal(url, LIMITS).starts_with("the URL cannot be fetched"), "{url}");
    }
}
