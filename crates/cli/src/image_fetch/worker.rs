//! The process that fetches: it reads orders from the server, and ends with it.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use girih::{Error, ErrorKind, Result};
use girih_hub::{FetchLimits, FetchNetwork, fetch};

use super::task::{FetchOrder, FetchReport, FetchTask};
use crate::helper_message::{End, Line, read_line, write_line};
use crate::loading;

/// The hidden command of the process.
pub const WORKER_COMMAND: &str = "fetch-worker";

/// The maximum number of fetches at once.
const MAX_FETCHES: usize = 16;

/// The maximum bytes of a file: as many as a decoder takes.
const MAX_BYTES: u64 = 32 << 20;

/// The maximum time of a fetch.
const MAX_TIME: Duration = Duration::from_secs(20);

/// The bytes of a file in one line: in base64, they leave room for the rest of it.
const PIECE_BYTES: usize = 45 << 10;

/// Fetches until the input ends; there are no arguments.
pub fn worker_main(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    if arguments.next().is_some() {
        return ExitCode::from(2);
    }
    let worker = Arc::new(FetchWorker {
        network: FetchNetwork::public(),
        running: AtomicUsize::new(0),
        output: Mutex::new(io::stdout()),
    });
    worker.obey_all(BufReader::new(io::stdin()));
    // Fetches that still run end with the process.
    ExitCode::SUCCESS
}

/// The command of the process.
///
/// # Errors
/// When the path of this program is unknown.
pub fn command() -> io::Result<Command> {
    let mut command = Command::new(loading::own_program()?);
    // Keys and tokens in variables are none of its business.
    command.arg(WORKER_COMMAND).env_clear();
    Ok(command)
}

/// What the threads of the process share: one reads orders, and each fetch has one.
struct FetchWorker<W> {
    network: FetchNetwork<'static>,
    running: AtomicUsize,
    output: Mutex<W>,
}

impl<W: Write + Send + 'static> FetchWorker<W> {
    /// Obeys orders until there are none any more.
    fn obey_all(self: &Arc<FetchWorker<W>>, mut orders: impl BufRead) {
        loop {
            match read_line::<FetchOrder>(&mut orders) {
                Line::End => return,
                // What runs ends within its time; nobody hears of it.
                Line::Read(FetchOrder { task: None, .. }) => {}
                Line::Read(FetchOrder { number, task: Some(task) }) => {
                    if let Err(error) = self.begin(number, task) {
                        self.tell_end(number, Err(error));
                    }
                }
                Line::Faulty(number, sentence) => {
                    let error = Error::with_kind(ErrorKind::Refused, sentence);
                    self.tell_end(number.unwrap_or(0), Err(error));
                }
            }
        }
    }

    /// Starts the thread of a fetch.
    ///
    /// # Errors
    /// When too many run.
    fn begin(self: &Arc<FetchWorker<W>>, number: u64, task: FetchTask) -> Result<()> {
        if self.running.load(Ordering::Acquire) >= MAX_FETCHES {
            let sentence = format!("{MAX_FETCHES} files are being fetched; try again later");
            return Err(Error::with_kind(ErrorKind::QueueFull, sentence));
        }
        self.running.fetch_add(1, Ordering::AcqRel);
        let worker = Arc::clone(self);
        let started = thread::Builder::new().spawn(move || {
            let fetched = catch_unwind(AssertUnwindSafe(|| worker.fetched(number, &task)));
            worker.running.fetch_sub(1, Ordering::AcqRel);
            let fault = |_| Err(Error::new("the process that fetches images met a fault"));
            worker.tell_end(number, fetched.unwrap_or_else(fault));
        });
        started.map(|_| ()).map_err(|error| {
            self.running.fetch_sub(1, Ordering::AcqRel);
            Error::new(format!("no thread can be started: {error}"))
        })
    }

    /// Fetches a file and tells its bytes.
    fn fetched(&self, number: u64, task: &FetchTask) -> Result<()> {
        // The server, which decodes images of strangers, is not trusted with more.
        let time = Duration::from_millis(task.milliseconds).min(MAX_TIME);
        let limits = FetchLimits { bytes: task.max_bytes.min(MAX_BYTES), time };
        let bytes = fetch(&task.url, limits, self.network)?;
        for piece in bytes.chunks(PIECE_BYTES) {
            self.tell(&FetchReport { number, progress: Some(STANDARD.encode(piece)), end: None });
        }
        Ok(())
    }

    fn tell_end(&self, number: u64, result: Result<()>) {
        self.tell(&FetchReport { number, end: Some(End::of(result)), progress: None });
    }

    fn tell(&self, report: &FetchReport) {
        let mut output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        // Nobody reads when the server is gone: then the input has ended, too.
        let _ = write_line(&mut *output, report);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{Ipv4Addr, SocketAddr, TcpListener};

    use super::*;
    use crate::helper_message::line_of;

    /// Answers each request with this file.
    fn server(file: Vec<u8>) -> u16 {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut head = [0; 1024];
                let _ = stream.read(&mut head);
                let _ = write!(
                    stream,
                    "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                    file.len()
                );
                let _ = stream.write_all(&file);
            }
        });
        port
    }

    /// What the process tells of these orders, when all are done.
    fn told(orders: &[u8], network: FetchNetwork<'static>) -> Vec<u8> {
        let worker = FetchWorker { network, running: AtomicUsize::new(0), output: Mutex::new(Vec::new()) };
        let worker = Arc::new(worker);
        worker.obey_all(orders);
        while worker.running.load(Ordering::Acquire) > 0 {
            thread::sleep(Duration::from_millis(1));
        }
        worker.output.lock().expect("no thread has panicked").clone()
    }

    fn lookup(_: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        Ok(vec![SocketAddr::from((Ipv4Addr::LOCALHOST, port))])
    }

    fn order(number: u64, url: String) -> Vec<u8> {
        let task = FetchTask { url, max_bytes: 200_000, milliseconds: 5000 };
        line_of(&FetchOrder { number, task: Some(task) }).expect("a short order")
    }

    #[test]
    fn files_come_in_pieces_and_refusals_as_sentences() {
        let file: Vec<u8> = (0..150_000_u32).map(|number| (number % 251) as u8).collect();
        let port = server(file.clone());
        let network = FetchNetwork { lookup: &lookup, allows: |address| address.is_loopback() };
        let orders = [
            order(1, format!("http://a.example:{port}/")),
            b"no JSON\n".to_vec(),
            order(2, "file:///etc/passwd".to_owned()),
        ];
        let output = told(&orders.concat(), network);
        let (mut reports, mut pieces, mut ends) = (output.as_slice(), Vec::new(), Vec::new());
        while let Line::Read(FetchReport { number, progress, end }) = read_line(&mut reports) {
            if let Some(piece) = progress {
                assert_eq!(number, 1);
                pieces.extend(STANDARD.decode(piece).expect("base64"));
            }
            ends.extend(end.map(|end| (number, end.result().err().map(|error| error.to_string()))));
        }
        ends.sort();
        assert!(pieces == file);
        let [(0, Some(faulty)), (1, None), (2, Some(refused))] = ends.as_slice() else { panic!("{ends:?}") };
        assert!(faulty.contains("expected form") && refused.contains("its scheme is"), "{faulty} {refused}");
    }

    /// What `girih serve` uses, which the tests replace above.
    #[test]
    fn the_process_reaches_public_addresses_only() {
        let port = server(b"secret".to_vec());
        let orders = order(1, format!("http://127.0.0.1:{port}/"));
        let text = String::from_utf8(told(&orders, FetchNetwork::public())).expect("JSON");
        assert!(text.contains("no public address"), "{text}");
    }
}
