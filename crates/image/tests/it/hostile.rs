//! Broken and hostile files: each is a picture or a sentence, none panics, and memory stays below the limit.

use std::process::Command;

use girih_image::{DecodeLimits, Picture, fuzz};

use crate::data::bytes;

const FILES: [&str; 11] = [
    "rgb.png",
    "palette.png",
    "bits16.png",
    "lossy.jpg",
    "progressive.jpg",
    "cmyk.jpg",
    "lossless.webp",
    "lossy.webp",
    "animated.webp",
    "animated.gif",
    "p.bmp",
];

/// A generator of numbers (Marsaglia's xorshift).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}

/// A file with one kind of damage: cut off, with other bits, or with a run of one byte.
fn damaged(mut file: Vec<u8>, numbers: &mut Numbers) -> Vec<u8> {
    match numbers.below(3) {
        0 => file.truncate(numbers.below(file.len())),
        1 => {
            for _ in 0..=numbers.below(8) {
                let at = numbers.below(file.len());
                file[at] ^= 1 << numbers.below(8);
            }
        }
        _ => {
            let (at, len, byte) =
                (numbers.below(file.len()), numbers.below(12), [0, 0x7f, 0xff][numbers.below(3)]);
            file.iter_mut().skip(at).take(len).for_each(|old| *old = byte);
        }
    }
    file
}

#[test]
fn damaged_files_are_pictures_or_sentences() {
    let mut numbers = Numbers(38);
    let (mut pictures, mut sentences) = (0, 0);
    for round in 0..40 {
        for name in FILES {
            let file = damaged(bytes(name), &mut numbers);
            match Picture::decode(&file, &DecodeLimits { pixels: 1 << 22, ..DecodeLimits::default() }) {
                Ok(_) => pictures += 1,
                Err(error) => {
                    sentences += 1;
                    let sentence = error.to_string();
                    assert!(!sentence.contains("gave up"), "{name}, round {round}: a decoder panicked");
                    assert!(
                        sentence.len() < 300 && !sentence.contains('\n'),
                        "{name}, round {round}: {sentence}"
                    );
                }
            }
            fuzz::image(&file);
        }
    }
    assert!(pictures > 20 && sentences > 100, "{pictures} pictures, {sentences} sentences");
}

/// Writes a number of 32 bits, big endian.
fn put(file: &mut [u8], at: usize, value: u32) {
    file[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

/// A PNG file whose header states another size, with the right checksum.
fn png_of(width: u32, height: u32) -> Vec<u8> {
    let mut file = bytes("rgb.png");
    put(&mut file, 16, width);
    put(&mut file, 20, height);
    let sum = crc(&file[12..29]);
    put(&mut file, 29, sum);
    file
}

/// The checksum of PNG (its specification, annex D).
fn crc(bytes: &[u8]) -> u32 {
    let step = |crc: u32| if crc & 1 == 1 { 0xedb8_8320 ^ (crc >> 1) } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc)))
}

#[test]
fn headers_with_huge_sizes_are_refused_before_memory_is_allocated() {
    in_own_process("decodes_headers_with_huge_sizes");
}

#[test]
#[ignore = "measures the peak of its process; the test above runs it in a process of its own"]
fn decodes_headers_with_huge_sizes() {
    let mut jpeg = bytes("lossy.jpg");
    let frame = jpeg.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap();
    jpeg[frame + 5..frame + 9].fill(0xff);
    let mut gif = bytes("plain.gif");
    gif[6..10].fill(0xff);
    let mut bmp = bytes("rgb.bmp");
    bmp[18..26].copy_from_slice(&[0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff, 0x7f]);
    let mut bmp_negative = bytes("rgb.bmp");
    bmp_negative[22..26].copy_from_slice(&[0, 0, 0, 0x80]);
    let before = peak();
    for (name, file) in [
        ("jpeg", jpeg),
        ("gif", gif),
        ("bmp", bmp),
        ("bmp", bmp_negative),
        ("png", png_of(1, 100_000)),
        ("png", png_of(100_000, 1)),
        ("png", png_of(60_000, 60_000)),
        ("png", png_of(u32::MAX >> 1, u32::MAX >> 1)),
        ("png", png_of(0, 5)),
    ] {
        let sentence = Picture::decode(&file, &DecodeLimits::default()).unwrap_err().to_string();
        assert!(sentence.contains("pixels") || sentence.contains("broken"), "{name}: {sentence}");
    }
    assert!(grown_since(before) < 64 << 20, "{} MiB were allocated", grown_since(before) >> 20);
}

/// A WebP file of these chunks.
fn webp_of(chunks: &[(&[u8; 4], Vec<u8>)]) -> Vec<u8> {
    let body = riff(chunks);
    let mut file = b"RIFF".to_vec();
    file.extend((body.len() as u32 + 4).to_le_bytes());
    file.extend(b"WEBP");
    file.extend(body);
    file
}

/// Chunks as RIFF has them: name, length, content, and a zero if the length is odd.
fn riff(chunks: &[(&[u8; 4], Vec<u8>)]) -> Vec<u8> {
    let mut body = Vec::new();
    for (name, data) in chunks {
        body.extend(*name);
        body.extend((data.len() as u32).to_le_bytes());
        body.extend(data);
        body.resize(body.len().next_multiple_of(2), 0);
    }
    body
}

/// The canvas has 8 x 8 pixels, but the compressed image states 16,383 x 16,383 or 4096 x 4096. The decoder would allocate
/// all of them.
#[test]
fn frames_of_webp_that_exceed_their_canvas_are_refused_before_memory_is_allocated() {
    in_own_process("decodes_frames_of_webp_that_exceed_their_canvas");
}

#[test]
#[ignore = "measures the peak of its process; the test above runs it in a process of its own"]
fn decodes_frames_of_webp_that_exceed_their_canvas() {
    let mut lossy = vec![0x10, 0, 0, 0x9d, 0x01, 0x2a, 0xff, 0x3f, 0xff, 0x3f];
    lossy.resize(200, 0);
    let mut lossless = vec![0x2f, 0xff, 0xcf, 0xff, 0x03];
    lossless.resize(200, 0);
    let canvas = |flags: u8| vec![flags, 0, 0, 0, 7, 0, 0, 7, 0, 0];
    let animation = || (b"ANIM", vec![0; 6]);
    let frame = |chunks: &[(&[u8; 4], Vec<u8>)]| {
        let place = [0, 0, 0, 0, 0, 0, 7, 0, 0, 7, 0, 0, 0, 0, 0, 0];
        [place.to_vec(), riff(chunks)].concat()
    };
    let before = peak();
    for (name, file) in [
        ("lossy", webp_of(&[(b"VP8X", canvas(0)), (b"VP8 ", lossy.clone())])),
        ("lossless", webp_of(&[(b"VP8X", canvas(0)), (b"VP8L", lossless.clone())])),
        ("alone", webp_of(&[(b"VP8 ", lossy.clone())])),
        (
            "frame",
            webp_of(&[(b"VP8X", canvas(2)), animation(), (b"ANMF", frame(&[(b"VP8 ", lossy.clone())]))]),
        ),
        (
            "behind alpha",
            webp_of(&[
                (b"VP8X", canvas(2)),
                animation(),
                (b"ANMF", frame(&[(b"ALPH", vec![0; 65]), (b"ABCD", lossy.clone())])),
            ]),
        ),
        (
            "not animated",
            webp_of(&[(b"VP8X", canvas(0)), (b"ANMF", frame(&[(b"VP8L", lossless)])), (b"VP8 ", lossy)]),
        ),
    ] {
        let sentence = Picture::decode(&file, &DecodeLimits::default()).unwrap_err().to_string();
        let words = match name {
            "lossless" => "a frame of 8 x 8 pixels holds one of 4096 x 4096",
            "not animated" => "it has frames but is not animated",
            _ => "16383 x 16383 pixels; at most 50000000 are allowed",
        };
        assert!(sentence.contains(words), "{name}: {sentence}");
    }
    assert!(grown_since(before) < 64 << 20, "{} MiB were allocated", grown_since(before) >> 20);
}

/// Runs an ignored test of this file in a process of its own, whose peak other tests do not raise.
fn in_own_process(test: &str) {
    let program = std::env::current_exe().expect("the test's own program");
    let name = format!("hostile::{test}");
    let ended = Command::new(program).args([&name, "--exact", "--ignored"]).output().expect("it starts");
    let text = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success() && text.contains("1 passed"), "{text}");
}

/// The largest memory that this process has had, in bytes.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// How far the peak has grown. Linux counts pages for each processor, so a later peak may seem smaller.
fn grown_since(before: u64) -> u64 {
    peak().saturating_sub(before)
}

/// Decoding takes less than the memory that the limits state, for a large picture of each format that has one.
#[test]
fn memory_stays_below_the_limit() {
    in_own_process("decodes_at_the_limit");
}

#[test]
#[ignore = "measures the peak of its process; the test above runs it in a process of its own"]
fn decodes_at_the_limit() {
    let limits = DecodeLimits { bytes: 1 << 20, pixels: 4 << 20, side: 1 << 14 };
    let before = peak();
    // A picture that the file does not fill: its decoder allocates all of it first.
    for file in [png_of(2048, 2048), png_of(16_384, 256)] {
        assert!(Picture::decode(&file, &limits).is_err());
    }
    assert!(grown_since(before) < limits.memory(), "{} MiB", grown_since(before) >> 20);
}

/// A broken colour profile does not matter: no profile is read.
#[test]
fn a_broken_colour_profile_is_left_alone() {
    let file = bytes("rgb.png");
    let mut chunk = b"iCCPx\0\0broken".to_vec();
    let sum = crc(&chunk);
    let mut with = file[..33].to_vec();
    with.extend((chunk.len() as u32 - 4).to_be_bytes());
    with.append(&mut chunk);
    with.extend(sum.to_be_bytes());
    with.extend(&file[33..]);
    let limits = DecodeLimits::default();
    assert_eq!(Picture::decode(&with, &limits).unwrap(), Picture::decode(&file, &limits).unwrap());
}
