//! A small HTTP server on loopback that serves a repository like the hub, and
//! injects faults.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::Duration;

use sha1::Sha1;
use sha2::{Digest, Sha256};

pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// The bytes of a block of [`Fault::Blocks`].
pub const BLOCK_BYTES: usize = 8 << 10;

/// A fault in the next response for a path.
#[derive(Clone, Debug)]
pub enum Fault {
    /// This status, with these further header lines.
    Status(u16, &'static str),
    /// A 302 redirect to this address.
    Redirect(String),
    /// The correct headers, then only this number of bytes of the body.
    CutAfter(usize),
    /// The correct body with this `Content-Length`.
    ClaimLength(usize),
    /// The correct body without a length, plus one extra byte.
    OneTooMany,
    /// The whole file, whatever the requested range.
    IgnoreRange,
    /// A 206 with this `Content-Range`.
    ClaimRange(&'static str),
    /// The last byte is flipped.
    WrongBytes,
    /// An endless body without a length.
    Endless,
    /// A body that is sent byte by byte.
    Trickle,
    /// A body that is sent in blocks of [`BLOCK_BYTES`], ten per second.
    Blocks,
    /// No response.
    Silence,
    /// The connection ends before the response.
    HangUp,
    /// The correct response, but with this etag.
    Etag(String),
}

/// A received request.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    pub path: String,
    headers: HashMap<String, String>,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    fn range_start(&self) -> Option<usize> {
        self.header("range")?.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()
    }
}

#[derive(Default)]
struct State {
    routes: HashMap<String, Vec<u8>>,
    faults: Mutex<HashMap<String, VecDeque<Fault>>>,
    requests: Mutex<Vec<Request>>,
    /// The number of blocks of [`Fault::Blocks`] that were begun.
    blocks: AtomicUsize,
    stop: AtomicBool,
}

/// A server that runs until it is dropped.
pub struct Server {
    address: SocketAddr,
    state: Arc<State>,
    accepting: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts a server of these bytes under these paths.
    pub fn start(routes: HashMap<String, Vec<u8>>) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State { routes, ..State::default() });
        let shared = state.clone();
        let accepting = spawn(move || {
            for stream in listener.incoming() {
                if shared.stop.load(Ordering::SeqCst) {
                    return;
                }
                let state = shared.clone();
                // A client may hang up early; that is not an error here.
                spawn(move || stream.and_then(|stream| state.answer(stream)));
            }
        });
        Server { address, state, accepting: Some(accepting) }
    }

    /// Serves a repository `org/name` with these files at `main`.
    pub fn of_repo(repo: &Repo) -> Server {
        let mut routes = HashMap::new();
        routes.insert("/api/models/org/name/revision/main".to_owned(), repo.listing().into_bytes());
        routes.insert(format!("/api/models/org/name/revision/{COMMIT}"), repo.listing().into_bytes());
        for (name, bytes) in &repo.files {
            routes.insert(format!("/org/name/resolve/{COMMIT}/{name}"), bytes.clone());
        }
        Server::start(routes)
    }

    /// Serves this text as the listing of `org/name`, without files.
    pub fn of_listing(listing: impl Into<Vec<u8>>) -> Server {
        Server::start(HashMap::from([("/api/models/org/name/revision/main".to_owned(), listing.into())]))
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Injects faults into the next responses for a path, one fault each.
    pub fn faults(&self, path: &str, faults: impl IntoIterator<Item = Fault>) {
        self.state.faults.lock().unwrap().entry(path.to_owned()).or_default().extend(faults);
    }

    /// Injects faults into the next responses for a file of `org/name`.
    pub fn file_faults(&self, name: &str, faults: impl IntoIterator<Item = Fault>) {
        self.faults(&format!("/org/name/resolve/{COMMIT}/{name}"), faults);
    }

    /// The requests for paths that end in `end`.
    pub fn requests(&self, end: &str) -> Vec<Request> {
        let all = self.state.requests.lock().unwrap();
        all.iter().filter(|request| request.path.ends_with(end)).cloned().collect()
    }

    /// The number of blocks of [`Fault::Blocks`] that were begun.
    pub fn blocks(&self) -> usize {
        self.state.blocks.load(Ordering::SeqCst)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
        if let Some(accepting) = self.accepting.take() {
            accepting.join().unwrap();
        }
    }
}

impl State {
    fn answer(&self, mut stream: TcpStream) -> std::io::Result<()> {
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.set_write_timeout(Some(Duration::from_secs(5)))?;
        let Some(request) = read_request(&stream)? else { return Ok(()) };
        self.requests.lock().unwrap().push(request.clone());
        let fault = self.faults.lock().unwrap().get_mut(&request.path).and_then(VecDeque::pop_front);
        let Some(body) = self.routes.get(&request.path) else {
            return write!(
                stream,
                "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            );
        };
        match fault {
            Some(Fault::Blocks) => behave_in_blocks(&mut stream, &request, body, &self.blocks),
            Some(fault) => misbehave(&mut stream, &request, body, fault),
            None => behave(&mut stream, &request, body, &etag(&request.path, body)),
        }
    }
}

fn read_request(stream: &TcpStream) -> std::io::Result<Option<Request>> {
    let mut lines = BufReader::new(stream).lines();
    let Some(first) = lines.next().transpose()? else { return Ok(None) };
    let mut words = first.split(' ');
    let method = words.next().unwrap_or_default().to_owned();
    let path = words.next().unwrap_or_default().split('?').next().unwrap_or_default().to_owned();
    let mut headers = HashMap::new();
    for line in lines {
        let line = line?;
        let Some((name, value)) = line.split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    Ok(Some(Request { method, path, headers }))
}

fn etag(path: &str, body: &[u8]) -> String {
    format!("ETag: \"{}\"\r\n", blob_name(path, body))
}

/// Sends the correct response: a 206 for a range request, otherwise a
/// 200.
fn behave(stream: &mut TcpStream, request: &Request, body: &[u8], etag: &str) -> std::io::Result<()> {
    let common = format!("{etag}X-Repo-Commit: {COMMIT}\r\nConnection: close");
    let from = request.range_start().unwrap_or(0);
    let (all, rest) = (body.len(), &body[from.min(body.len())..]);
    let range = match request.range_start() {
        None => "HTTP/1.1 200 OK".to_owned(),
        Some(_) if rest.is_empty() => "HTTP/1.1 416 Range Not Satisfiable".to_owned(),
        Some(_) => format!("HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {from}-{}/{all}", all - 1),
    };
    write!(stream, "{range}\r\nContent-Length: {}\r\n{common}\r\n\r\n", rest.len())?;
    if request.method == "HEAD" { Ok(()) } else { stream.write_all(rest) }
}

fn behave_in_blocks(
    stream: &mut TcpStream,
    request: &Request,
    body: &[u8],
    blocks: &AtomicUsize,
) -> std::io::Result<()> {
    let all = body.len();
    let from = request.range_start().unwrap_or(0).min(all);
    let rest = &body[from..];
    match request.range_start() {
        None => write!(stream, "HTTP/1.1 200 OK\r\n")?,
        Some(_) => write!(
            stream,
            "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {from}-{}/{all}\r\n",
            all - 1
        )?,
    }
    write!(stream, "Content-Length: {}\r\nConnection: close\r\n\r\n", rest.len())?;
    rest.chunks(BLOCK_BYTES).try_for_each(|block| {
        sleep(Duration::from_millis(100));
        blocks.fetch_add(1, Ordering::SeqCst);
        stream.write_all(block)
    })
}

fn misbehave(stream: &mut TcpStream, request: &Request, body: &[u8], fault: Fault) -> std::io::Result<()> {
    let rest = &body[request.range_start().unwrap_or(0).min(body.len())..];
    let open = "HTTP/1.1 200 OK\r\nConnection: close\r\n";
    match fault {
        Fault::Status(status, headers) => {
            write!(stream, "HTTP/1.1 {status} Oh\r\n{headers}Content-Length: 0\r\nConnection: close\r\n\r\n")
        }
        Fault::Redirect(to) => {
            write!(
                stream,
                "HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            )
        }
        Fault::CutAfter(count) => {
            write!(stream, "{open}Content-Length: {}\r\n\r\n", body.len())?;
            stream.write_all(&body[..count])
        }
        Fault::ClaimLength(length) => {
            write!(stream, "{open}Content-Length: {length}\r\n\r\n")?;
            stream.write_all(body)
        }
        Fault::OneTooMany => {
            write!(stream, "{open}\r\n")?;
            stream.write_all(body)?;
            stream.write_all(b"!")
        }
        Fault::IgnoreRange => {
            write!(stream, "{open}Content-Length: {}\r\n\r\n", body.len())?;
            stream.write_all(body)
        }
        Fault::ClaimRange(range) => {
            write!(stream, "HTTP/1.1 206 Partial Content\r\nContent-Range: {range}\r\n")?;
            write!(stream, "Content-Length: {}\r\nConnection: close\r\n\r\n", rest.len())?;
            stream.write_all(rest)
        }
        Fault::WrongBytes => {
            let mut wrong = body.to_vec();
            *wrong.last_mut().unwrap() ^= 1;
            behave(stream, request, &wrong, "")
        }
        Fault::Endless => {
            write!(stream, "{open}\r\n")?;
            // 64 MiB: far more than the client may read, but finite.
            (0..1024).try_for_each(|_| stream.write_all(&[7; 64 << 10]))
        }
        Fault::Trickle => {
            write!(stream, "{open}Content-Length: {}\r\n\r\n", body.len())?;
            body.iter().take(500).try_for_each(|byte| {
                sleep(Duration::from_millis(10));
                stream.write_all(&[*byte])
            })
        }
        Fault::Blocks => unreachable!("the caller sends blocks"),
        Fault::Silence => {
            // Until the client hangs up, or the read timeout of 5 s.
            let _ = BufReader::new(&*stream).fill_buf();
            Ok(())
        }
        Fault::HangUp => Ok(()),
        Fault::Etag(etag) => behave(stream, request, body, &etag),
    }
}

/// A repository's files, and the form of its listing.
#[derive(Clone, Default)]
pub struct Repo {
    pub files: BTreeMap<String, Vec<u8>>,
    /// Omits sizes and digests from the listing.
    pub terse: bool,
}

impl Repo {
    pub fn of(files: &[(&str, &[u8])]) -> Repo {
        let files = files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec())).collect();
        Repo { files, terse: false }
    }

    fn listing(&self) -> String {
        let siblings: Vec<String> =
            self.files.iter().map(|(name, bytes)| self.sibling(name, bytes)).collect();
        format!(r#"{{"id":"org/name","sha":"{COMMIT}","siblings":[{}]}}"#, siblings.join(","))
    }

    fn sibling(&self, name: &str, bytes: &[u8]) -> String {
        let (size, blob, sha256) = (bytes.len(), git_blob(bytes), sha256(bytes));
        if self.terse {
            format!(r#"{{"rfilename":"{name}"}}"#)
        } else if is_large(name) {
            let lfs = format!(r#"{{"sha256":"{sha256}","size":{size},"pointerSize":134}}"#);
            format!(r#"{{"rfilename":"{name}","size":{size},"blobId":"{blob}","lfs":{lfs}}}"#)
        } else {
            format!(r#"{{"rfilename":"{name}","size":{size},"blobId":"{blob}"}}"#)
        }
    }
}

fn is_large(name: &str) -> bool {
    name.ends_with(".safetensors") || name.ends_with(".gguf")
}

/// The name of a file's blob in the cache.
pub fn blob_name(name: &str, bytes: &[u8]) -> String {
    if is_large(name) { sha256(bytes) } else { git_blob(bytes) }
}

fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn git_blob(bytes: &[u8]) -> String {
    hex(&Sha1::new_with_prefix(format!("blob {}\0", bytes.len())).chain_update(bytes).finalize())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a String takes all");
        text
    })
}
