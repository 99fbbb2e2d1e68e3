//! Builds container files byte by byte, so that they can be malformed.

/// A builder of GGUF bytes.
pub struct Gguf(pub Vec<u8>);

impl Gguf {
    /// The fixed start of a file, with any version and counts.
    pub fn start(version: u32, tensors: u64, pairs: u64) -> Gguf {
        Gguf(b"GGUF".to_vec()).u32(version).u64(tensors).u64(pairs)
    }

    pub fn bytes(mut self, bytes: &[u8]) -> Gguf {
        self.0.extend(bytes);
        self
    }

    pub fn u32(self, number: u32) -> Gguf {
        self.bytes(&number.to_le_bytes())
    }

    pub fn u64(self, number: u64) -> Gguf {
        self.bytes(&number.to_le_bytes())
    }

    pub fn string(self, text: &str) -> Gguf {
        self.u64(text.len() as u64).bytes(text.as_bytes())
    }

    /// A key and its value's type; the value must follow.
    pub fn key(self, key: &str, kind: u32) -> Gguf {
        self.string(key).u32(kind)
    }

    /// A tensor's entry; `extents` innermost first.
    pub fn entry(self, name: &str, extents: &[u64], kind: u32, offset: u64) -> Gguf {
        let mut gguf = self.string(name).u32(extents.len() as u32);
        for &extent in extents {
            gguf = gguf.u64(extent);
        }
        gguf.u32(kind).u64(offset)
    }

    /// Pads to 32 bytes and appends `bytes` bytes of data.
    pub fn data(mut self, bytes: usize) -> Vec<u8> {
        let start = self.0.len().next_multiple_of(32);
        self.0.resize(start + bytes, 0);
        self.0
    }
}

/// A safetensors file of this header and `data` bytes of data.
pub fn safetensors(header: &str, data: usize) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.resize(file.len() + data, 0);
    file
}

/// A small valid GGUF file: two tensors, and pairs of most types.
pub fn good_gguf() -> Vec<u8> {
    Gguf::start(3, 2, 6)
        .key("general.architecture", 8)
        .string("llama")
        .key("general.alignment", 4)
        .u32(32)
        .key("llama.rope.freq_base", 6)
        .u32(10000f32.to_bits())
        .key("tokenizer.ggml.tokens", 9)
        .u32(8)
        .u64(3)
        .string("a")
        .string("")
        .string("ñ")
        .key("tokenizer.ggml.add_bos_token", 7)
        .bytes(&[1])
        .key("nested", 9)
        .u32(9)
        .u64(1)
        .u32(5)
        .u64(2)
        .u32(7)
        .u32(8)
        .entry("token_embd.weight", &[32, 2], 8, 0)
        .entry("output_norm.weight", &[4], 0, 96)
        .data(96 + 16)
}

/// A small valid safetensors file.
pub fn good_safetensors() -> Vec<u8> {
    let header = r#"{"__metadata__":{"format":"pt"},
        "b":{"dtype":"BF16","shape":[2,3],"data_offsets":[8,20]},
        "a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
        "scalar":{"dtype":"I8","shape":[],"data_offsets":[20,21]}}"#;
    safetensors(header, 21)
}

/// A small valid manifest of IEBIN whose files are those of [`girih_file::fuzz::iebin`].
pub fn good_iebin() -> Vec<u8> {
    let quant =
        r#""per":"row","scale_bin":"/there/scales.bin","scale_dtype":"fp16","pack":"nibble_lohi","zp":0"#;
    let tensors = [
        r#"{"name":"a","dtype":"fp32","shape":[2,3],"offset":0,"nbytes":24}"#.to_owned(),
        r#"{"name":"b","dtype":"BF16","shape":[4],"file":"x.bin","file_data_offset":64,"nbytes":8}"#
            .to_owned(),
        r#"{"name":"c","dtype":"fp32","shape":[6],"offset":0,"nbytes":24}"#.to_owned(),
        format!(
            r#"{{"name":"d","dtype":"int4","shape":[2,32],"offset":64,"nbytes":32,"quant":{{{quant}}}}}"#
        ),
        r#"{"name":"e","dtype":"f8_e4m3","shape":[8],"offset":128,"nbytes":8}"#.to_owned(),
    ];
    let tensors = tensors.join(",");
    format!(
        r#"{{"format":"iebin.v1","version":1,"bin":"model.ie.bin","dtype":"mixed","tensors":[{tensors}]}}"#
    )
    .into_bytes()
}

/// A small valid overlay for the manifest of [`girih_file::fuzz::iebin_overlay`].
pub fn good_iebin_overlay() -> Vec<u8> {
    let target = |index: usize, place: usize| {
        format!(
            r#"{{"tensor_index":{index},"nbytes":96,"mask_off":{},"mask_nbytes":12,"exc_off":{},"exc_nbytes":48,"exc_popcount":48}}"#,
            12 * place,
            48 * place
        )
    };
    let files = r#"{"defaults":"/there/model.defaults.bin","masks":"m.bin","exceptions":"x.bin"}"#;
    let default = r#"{"tensor_index":1,"nbytes":96,"default_off":96}"#;
    let targets = [target(2, 0), target(3, 1)].join(",  ");
    format!(
        r#"{{ "magic":"DUDP", "version":1, "files":{files}, "groups":[ {{"default":{default},"targets":[{targets}]}} ] }}"#
    )
    .into_bytes()
}
