//! What a picture is, by its bytes: endpoints refuse a wrong label, a broken header or too many pixels, and
//! with it everything that comes after it in the history.

/// As the bytes say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Picture {
    pub(super) media_type: &'static str,
    /// Width and height in pixels, where the header is whole.
    pub(super) size: Option<(u32, u32)>,
}

/// Reads the header; `None` for a kind that endpoints don't take.
pub(super) fn read(data: &[u8]) -> Option<Picture> {
    let (media_type, size) = match data {
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => ("image/png", png(data)),
        [0xff, 0xd8, 0xff, ..] => ("image/jpeg", jpeg(data)),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => ("image/gif", gif(data)),
        [
            b'R',
            b'I',
            b'F',
            b'F',
            _,
            _,
            _,
            _,
            b'W',
            b'E',
            b'B',
            b'P',
            ..,
        ] => ("image/webp", webp(data)),
        _ => return None,
    };
    let size = size.filter(|(width, height)| *width > 0 && *height > 0);
    Some(Picture { media_type, size })
}

fn png(data: &[u8]) -> Option<(u32, u32)> {
    if data.get(12..16)? != b"IHDR" {
        return None;
    }
    let side = |at: usize| Some(u32::from_be_bytes(data.get(at..at + 4)?.try_into().ok()?));
    Some((side(16)?, side(20)?))
}

fn gif(data: &[u8]) -> Option<(u32, u32)> {
    Some((le16(data, 6)?, le16(data, 8)?))
}

fn webp(data: &[u8]) -> Option<(u32, u32)> {
    match data.get(12..16)? {
        b"VP8 " if data.get(23..26)? == [0x9d, 0x01, 0x2a] => {
            Some((le16(data, 26)? & 0x3fff, le16(data, 28)? & 0x3fff))
        }
        b"VP8L" if *data.get(20)? == 0x2f => {
            let bits = u32::from_le_bytes(data.get(21..25)?.try_into().ok()?);
            Some(((bits & 0x3fff) + 1, ((bits >> 14) & 0x3fff) + 1))
        }
        b"VP8X" => Some((le24(data, 24)? + 1, le24(data, 27)? + 1)),
        _ => None,
    }
}

/// Goes from marker to marker to the frame header that has the size.
fn jpeg(data: &[u8]) -> Option<(u32, u32)> {
    let mut at = 2;
    loop {
        if *data.get(at)? != 0xff {
            return None;
        }
        let marker = *data.get(at + 1)?;
        match marker {
            // A fill byte.
            0xff => at += 1,
            // Markers without a segment.
            0x01 | 0xd0..=0xd7 => at += 2,
            // The picture's data or its end before its size.
            0xd8..=0xda => return None,
            0xc0..=0xc3 | 0xc5..=0xc7 | 0xc9..=0xcb | 0xcd..=0xcf => {
                return Some((be16(data, at + 7)?, be16(data, at + 5)?));
            }
            _ => at += 2 + usize::try_from(be16(data, at + 2)?).ok()?,
        }
    }
}

fn be16(data: &[u8], at: usize) -> Option<u32> {
    let bytes = data.get(at..at + 2)?.try_into().ok()?;
    Some(u16::from_be_bytes(bytes).into())
}

fn le16(data: &[u8], at: usize) -> Option<u32> {
    let bytes = data.get(at..at + 2)?.try_into().ok()?;
    Some(u16::from_le_bytes(bytes).into())
}

fn le24(data: &[u8], at: usize) -> Option<u32> {
    match data.get(at..at + 3)? {
        &[a, b, c] => Some(u32::from_le_bytes([a, b, c, 0])),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn is(data: &[u8], media_type: &'static str, size: Option<(u32, u32)>) {
        assert_eq!(read(data), Some(Picture { media_type, size }));
    }

    #[test]
    fn the_header_says_kind_and_size() {
        is(
            b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x02\0\0\0\0\x03",
            "image/png",
            Some((512, 3)),
        );
        is(b"GIF89a\x0a\0\x01\x01", "image/gif", Some((10, 257)));
        let jpeg = b"\xff\xd8\xff\xe0\0\x04ab\xff\xff\xc4\0\x02\xff\xc2\0\x11\x08\x01\0\0\x10";
        is(jpeg, "image/jpeg", Some((16, 256)));
        let webp = |chunk: &[u8]| [b"RIFF\0\0\0\0WEBP", chunk].concat();
        is(
            &webp(b"VP8 \0\0\0\0\0\0\0\x9d\x01\x2a\x40\x01\xf0\0"),
            "image/webp",
            Some((320, 240)),
        );
        is(
            &webp(b"VP8L\0\0\0\0\x2f\x3f\xc1\x3b\0"),
            "image/webp",
            Some((320, 240)),
        );
        is(
            &webp(b"VP8X\0\0\0\0\0\0\0\0\x3f\x01\0\xef\0\0"),
            "image/webp",
            Some((320, 240)),
        );
        assert_eq!(read(b"<svg/>"), None);
        assert_eq!(read(b""), None);
    }

    #[test]
    fn a_broken_header_has_no_size() {
        is(b"\x89PNG\r\n\x1a\n", "image/png", None);
        is(
            b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\0\0\0\0\x03",
            "image/png",
            None,
        );
        is(b"\xff\xd8\xff\xe0\xff\xff", "image/jpeg", None);
        is(b"\xff\xd8\xff\xe0\0\0\xff\xe0\0\0", "image/jpeg", None);
        is(b"\xff\xd8\xff\xda\0\x02", "image/jpeg", None);
        is(b"GIF87a", "image/gif", None);
        is(b"RIFF\0\0\0\0WEBPnope", "image/webp", None);
    }

    #[test]
    fn no_cut_makes_it_panic() {
        let whole: [&[u8]; 4] = [
            b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x02\0\0\0\0\x03",
            b"\xff\xd8\xff\xe0\0\x04ab\xff\xff\xc4\0\x02\xff\xc2\0\x11\x08\x01\0\0\x10",
            b"GIF89a\x0a\0\x01\x01",
            b"RIFF\0\0\0\0WEBPVP8X\0\0\0\0\0\0\0\0\x3f\x01\0\xef\0\0",
        ];
        for data in whole {
            for end in 0..data.len() {
                assert_eq!(read(&data[..end]).and_then(|picture| picture.size), None);
            }
        }
    }
}
