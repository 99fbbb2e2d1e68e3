//! Files of each format, decoded as Pillow decodes them.

use girih_image::{DecodeLimits, ErrorKind, Picture, ResizeFilter, resize};

use crate::data::{bytes, golden, sha256};

/// The largest difference of a sample after resizing to 8 x 8: decoders of lossy formats round differently.
const LOSSY: u8 = 3;

#[test]
fn files_decode_as_in_pillow() {
    let golden = golden();
    let files = golden["files"].as_object().unwrap();
    assert_eq!(files.len(), 36);
    let mut faults = Vec::new();
    for (name, expected) in files {
        let picture = match Picture::decode(&bytes(name), &DecodeLimits::default()) {
            Ok(picture) => picture,
            Err(error) => {
                faults.push(format!("{name}: {error}"));
                continue;
            }
        };
        let size = [picture.width(), picture.height()].map(u64::from).map(Some);
        let is_equal = match expected["sha256"].as_str() {
            Some(digest) => sha256(picture.rgb()) == digest,
            None => {
                let grid = resize(&picture, 8, 8, ResizeFilter::Bilinear).unwrap();
                let expected =
                    expected["grid"].as_array().unwrap().iter().map(|value| value.as_u64().unwrap() as u8);
                grid.rgb().iter().zip(expected).all(|(found, expected)| found.abs_diff(expected) <= LOSSY)
            }
        };
        let is_animated = expected["is_animated"].as_bool().unwrap();
        if size != [expected["width"].as_u64(), expected["height"].as_u64()] {
            faults.push(format!("{name}: the size is {picture:?}"));
        } else if !is_equal {
            faults.push(format!("{name}: pixels differ, the first are {:?}", &picture.rgb()[..12]));
        } else if picture.note().is_some() != is_animated {
            faults.push(format!("{name}: the note is {:?}", picture.note()));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

fn refusal(bytes: &[u8]) -> String {
    let error = Picture::decode(bytes, &DecodeLimits::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused);
    error.to_string()
}

#[test]
fn other_formats_are_refused_by_name() {
    for (bytes, name) in [
        (&b""[..], "empty"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "SVG"),
        (b"  <?xml version='1.0'?>", "SVG"),
        (b"II*\0\x08\0\0\0", "TIFF"),
        (b"%PDF-1.7", "PDF"),
        (b"\0\0\0\x18ftypheic", "HEIC"),
        (b"\0\0\0\x18ftypavif", "AVIF"),
        (b"hello", "unknown"),
    ] {
        let sentence = refusal(bytes);
        assert!(sentence.contains(name) && sentence.contains("PNG, JPEG, WebP, GIF and BMP"), "{sentence}");
    }
}

#[test]
fn a_jpeg_that_ends_early_is_refused() {
    for name in ["lossy.jpg", "progressive.jpg"] {
        let file = bytes(name);
        let sentence = refusal(&file[..file.len() - 40]);
        assert!(sentence.contains("ends before"), "{name}: {sentence}");
    }
}

/// Cameras put a preview before the image, and a video or other pictures behind it.
#[test]
fn markers_in_previews_and_behind_a_jpeg_do_not_count() {
    for name in ["lossy.jpg", "progressive.jpg"] {
        let file = bytes(name);
        let scans = [0xff, 0xda].repeat(300);
        let preview =
            [&[0xff, 0xe5][..], &(scans.len() as u16 + 4).to_be_bytes(), &scans, &[0xff, 0xd9]].concat();
        let whole = [&file[..2], &preview, &file[2..], &scans].concat();
        let limits = DecodeLimits::default();
        let found = Picture::decode(&whole, &limits).unwrap();
        assert_eq!(found, Picture::decode(&file, &limits).unwrap(), "{name}");
        // The end within the preview is not the image's.
        let cut = &whole[..2 + preview.len() + file.len() - 42];
        assert!(refusal(cut).contains("ends before"), "{name}");
    }
}

/// Each scan passes over the whole image, so that many short ones would take long.
#[test]
fn a_jpeg_of_many_scans_is_refused() {
    let mut file = bytes("progressive.jpg");
    let end = file.split_off(file.len() - 2);
    let scan = [0xff, 0xda, 0, 8, 1, 1, 0, 1, 5, 0, 0x7f];
    file.extend(scan.repeat(200));
    file.extend(end);
    let sentence = refusal(&file);
    assert!(sentence.contains("scans"), "{sentence}");
}

#[test]
fn cmyk_without_adobes_marker_is_refused() {
    let mut file = bytes("cmyk.jpg");
    let at = file.windows(5).position(|window| window == b"Adobe").unwrap();
    file[at] = b'a';
    let sentence = refusal(&file);
    assert!(sentence.contains("CMYK"), "{sentence}");
}

#[test]
fn limits_are_named() {
    let file = bytes("rgb.png");
    let limits = DecodeLimits::default();
    for (limits, word) in [
        (DecodeLimits { bytes: 100, ..limits.clone() }, "bytes"),
        (DecodeLimits { pixels: 37 * 23 - 1, ..limits.clone() }, "850"),
        (DecodeLimits { side: 36, ..limits.clone() }, "each side"),
    ] {
        let sentence = Picture::decode(&file, &limits).unwrap_err().to_string();
        assert!(sentence.contains(word), "{sentence}");
    }
    assert!(Picture::decode(&file, &DecodeLimits { pixels: 37 * 23, side: 37, ..limits }).is_ok());
    assert!(Picture::from_rgb(2, 2, vec![0; 11]).is_err());
}
