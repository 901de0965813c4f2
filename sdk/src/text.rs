//! JSON text, written by the compiler.

/// A growing text of constants. With `N = 0` it only counts, which gives the `N` for the second pass.
#[doc(hidden)]
pub struct Text<const N: usize> {
    pub bytes: [u8; N],
    pub len: usize,
    last: u8,
}

/// The text of a `const fn` that makes a [`Text`], as `&'static str`.
#[doc(hidden)]
#[macro_export]
macro_rules! __text {
    ($write:ident, $($argument:expr),+) => {{
        #[allow(long_running_const_eval)]
        const LEN: usize = $crate::__rt::$write::<0>($($argument),+).len;
        #[allow(long_running_const_eval)]
        const BYTES: [u8; LEN] = $crate::__rt::$write::<LEN>($($argument),+).bytes;
        match ::core::str::from_utf8(&BYTES) {
            Ok(text) => text,
            Err(_) => panic!(),
        }
    }};
}

impl<const N: usize> Text<N> {
    pub(crate) const fn new() -> Self {
        Self {
            bytes: [0; N],
            len: 0,
            last: 0,
        }
    }

    /// Whether nothing stands yet in the innermost object or array.
    pub(crate) const fn at_start(&self) -> bool {
        matches!(self.last, b'{' | b'[')
    }

    pub(crate) const fn raw(&mut self, text: &str) {
        let bytes = text.as_bytes();
        let Some(last) = bytes.last() else {
            return;
        };
        if N > 0 {
            // Whole texts at once: a loop over bytes takes the compiler seconds for large schemas.
            let (_, free) = self.bytes.split_at_mut(self.len);
            let (place, _) = free.split_at_mut(bytes.len());
            place.copy_from_slice(bytes);
        }
        self.len += bytes.len();
        self.last = *last;
    }

    pub(crate) const fn string(&mut self, text: &str) {
        self.byte(b'"');
        self.escaped(text);
        self.byte(b'"');
    }

    /// A piece of a JSON string.
    pub(crate) const fn escaped(&mut self, text: &str) {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        let bytes = text.as_bytes();
        let mut i = 0;
        while i < bytes.len() {
            match bytes[i] {
                b'"' => self.raw("\\\""),
                b'\\' => self.raw("\\\\"),
                b'\n' => self.raw("\\n"),
                b'\r' => self.raw("\\r"),
                b'\t' => self.raw("\\t"),
                byte if byte < 0x20 => {
                    self.raw("\\u00");
                    self.byte(HEX[(byte >> 4) as usize]);
                    self.byte(HEX[(byte & 15) as usize]);
                }
                byte => self.byte(byte),
            }
            i += 1;
        }
    }

    pub(crate) const fn integer(&mut self, value: i64) {
        if value < 0 {
            self.byte(b'-');
        }
        self.natural(value.unsigned_abs());
    }

    pub(crate) const fn natural(&mut self, mut value: u64) {
        let mut digits = [0u8; 20];
        let mut count = 0;
        loop {
            digits[count] = b'0' + (value % 10) as u8;
            count += 1;
            value /= 10;
            if value == 0 {
                break;
            }
        }
        while count > 0 {
            count -= 1;
            self.byte(digits[count]);
        }
    }

    const fn byte(&mut self, byte: u8) {
        if N > 0 {
            self.bytes[self.len] = byte;
        }
        self.len += 1;
        self.last = byte;
    }
}
