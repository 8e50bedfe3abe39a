//! Just enough of Python's pickle to find the tensors in what `torch.save` wrote.
//!
//! No object is built: whatever is not a tensor, a number, a string, a tuple or a dictionary is [`Value::Other`].

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use burn::tensor::DType;

/// How a tensor lies in its storage, in elements.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Layout {
    /// Name of the storage's file in the archive.
    pub(super) storage: String,
    pub(super) dtype: DType,
    pub(super) offset: usize,
    pub(super) shape: Vec<usize>,
    pub(super) strides: Vec<usize>,
}

/// Nested dictionaries below this are no state dict.
const MAX_DEPTH: usize = 8;

/// Every tensor in the dictionaries of a pickle, with the keys on its way joined by dots.
pub(super) fn tensors(pickle: &[u8]) -> Result<BTreeMap<String, Layout>, String> {
    let root = Machine { rest: pickle, stack: Vec::new(), marks: Vec::new(), memo: HashMap::new() }.run()?;
    if !matches!(root, Value::Dict(_)) {
        return Err("it holds a whole Python object, expected a state dict".to_owned());
    }
    let mut tensors = BTreeMap::new();
    collect(&root, String::new(), 0, &mut tensors);
    Ok(tensors)
}

fn collect(value: &Value, path: String, depth: usize, tensors: &mut BTreeMap<String, Layout>) {
    match value {
        Value::Tensor(layout) => {
            tensors.insert(path, Layout::clone(layout));
        }
        Value::Dict(entries) if depth < MAX_DEPTH => {
            for (key, value) in entries.borrow().iter() {
                let key = match key {
                    Value::Text(key) => key.to_string(),
                    Value::Int(key) => key.to_string(),
                    _ => continue,
                };
                let path = if path.is_empty() { key } else { format!("{path}.{key}") };
                collect(value, path, depth + 1, tensors);
            }
        }
        _ => {}
    }
}

/// A value on the stack. Clones are references, as in Python, so that a memoised dictionary can still grow.
#[derive(Clone, Debug)]
enum Value {
    Int(i64),
    Text(Rc<str>),
    Tuple(Rc<[Value]>),
    Dict(Rc<RefCell<Vec<(Value, Value)>>>),
    /// A function or class, `module.name`.
    Global(Rc<str>),
    Storage(Rc<str>, DType),
    Tensor(Rc<Layout>),
    Other,
}

/// The opcodes that `torch.save` writes, under their names in Python's `pickletools`.
mod op {
    pub(super) const STOP: u8 = b'.';
    pub(super) const PROTO: u8 = 0x80;
    pub(super) const FRAME: u8 = 0x95;
    pub(super) const MARK: u8 = b'(';
    pub(super) const POP: u8 = b'0';
    pub(super) const POP_MARK: u8 = b'1';
    pub(super) const DUP: u8 = b'2';
    pub(super) const BINPUT: u8 = b'q';
    pub(super) const LONG_BINPUT: u8 = b'r';
    pub(super) const MEMOIZE: u8 = 0x94;
    pub(super) const BINGET: u8 = b'h';
    pub(super) const LONG_BINGET: u8 = b'j';
    pub(super) const NONE: u8 = b'N';
    pub(super) const NEWTRUE: u8 = 0x88;
    pub(super) const NEWFALSE: u8 = 0x89;
    pub(super) const BININT: u8 = b'J';
    pub(super) const BININT1: u8 = b'K';
    pub(super) const BININT2: u8 = b'M';
    pub(super) const LONG1: u8 = 0x8a;
    pub(super) const LONG4: u8 = 0x8b;
    pub(super) const BINFLOAT: u8 = b'G';
    pub(super) const SHORT_BINUNICODE: u8 = 0x8c;
    pub(super) const BINUNICODE: u8 = b'X';
    pub(super) const SHORT_BINSTRING: u8 = b'U';
    pub(super) const BINSTRING: u8 = b'T';
    pub(super) const SHORT_BINBYTES: u8 = b'C';
    pub(super) const BINBYTES: u8 = b'B';
    pub(super) const EMPTY_TUPLE: u8 = b')';
    pub(super) const TUPLE1: u8 = 0x85;
    pub(super) const TUPLE3: u8 = 0x87;
    pub(super) const TUPLE: u8 = b't';
    pub(super) const EMPTY_DICT: u8 = b'}';
    pub(super) const DICT: u8 = b'd';
    pub(super) const SETITEM: u8 = b's';
    pub(super) const SETITEMS: u8 = b'u';
    pub(super) const EMPTY_LIST: u8 = b']';
    pub(super) const LIST: u8 = b'l';
    pub(super) const APPEND: u8 = b'a';
    pub(super) const APPENDS: u8 = b'e';
    pub(super) const EMPTY_SET: u8 = 0x8f;
    pub(super) const ADDITEMS: u8 = 0x90;
    pub(super) const FROZENSET: u8 = 0x91;
    pub(super) const GLOBAL: u8 = b'c';
    pub(super) const STACK_GLOBAL: u8 = 0x93;
    pub(super) const BINPERSID: u8 = b'Q';
    pub(super) const REDUCE: u8 = b'R';
    pub(super) const NEWOBJ: u8 = 0x81;
    pub(super) const BUILD: u8 = b'b';
}

struct Machine<'a> {
    rest: &'a [u8],
    stack: Vec<Value>,
    marks: Vec<usize>,
    memo: HashMap<u32, Value>,
}

impl Machine<'_> {
    fn run(mut self) -> Result<Value, String> {
        loop {
            match self.byte()? {
                op::STOP => return self.pop(),
                op::PROTO => drop(self.take(1)?),
                op::FRAME => drop(self.take(8)?),

                op::MARK => self.marks.push(self.stack.len()),
                op::POP => drop(self.pop()?),
                op::POP_MARK => drop(self.pop_mark()?),
                op::DUP => self.push(self.top()?),

                op::BINPUT => {
                    let index = self.byte()?.into();
                    self.memoise(index)?;
                }
                op::LONG_BINPUT => {
                    let index = self.u32()?;
                    self.memoise(index)?;
                }
                op::MEMOIZE => self.memoise(self.memo.len() as u32)?,
                op::BINGET => {
                    let index = self.byte()?.into();
                    self.recall(index)?;
                }
                op::LONG_BINGET => {
                    let index = self.u32()?;
                    self.recall(index)?;
                }

                op::NONE | op::NEWTRUE | op::NEWFALSE => self.push(Value::Other),
                op::BININT => {
                    let value = self.u32()?.cast_signed();
                    self.push(Value::Int(value.into()));
                }
                op::BININT1 => {
                    let value = self.byte()?;
                    self.push(Value::Int(value.into()));
                }
                op::BININT2 => {
                    let value = u16::from_le_bytes(self.array()?);
                    self.push(Value::Int(value.into()));
                }
                op::LONG1 => {
                    let length = self.byte()?;
                    self.long(length.into())?;
                }
                op::LONG4 => {
                    let length = self.u32()?;
                    self.long(length as usize)?;
                }
                op::BINFLOAT => self.skip(8)?,
                op::SHORT_BINUNICODE | op::SHORT_BINSTRING => {
                    let length = self.byte()?;
                    self.text(length.into())?;
                }
                op::BINUNICODE | op::BINSTRING => {
                    let length = self.u32()?;
                    self.text(length as usize)?;
                }
                op::SHORT_BINBYTES => {
                    let length = self.byte()?;
                    self.skip(length.into())?;
                }
                op::BINBYTES => {
                    let length = self.u32()?;
                    self.skip(length as usize)?;
                }

                op::EMPTY_TUPLE => self.push(Value::Tuple(Rc::new([]))),
                op @ op::TUPLE1..=op::TUPLE3 => {
                    let length = usize::from(op - op::TUPLE1) + 1;
                    let start = self.stack.len().checked_sub(length).ok_or(UNDERFLOW)?;
                    let items = self.stack.split_off(start);
                    self.push(Value::Tuple(items.into()));
                }
                op::TUPLE => {
                    let items = self.pop_mark()?;
                    self.push(Value::Tuple(items.into()));
                }
                op::EMPTY_DICT => self.push(dict(Vec::new())),
                op::DICT => {
                    let items = self.pop_mark()?;
                    self.push(dict(pairs(&items)));
                }
                op::SETITEM => {
                    let (value, key) = (self.pop()?, self.pop()?);
                    self.set_items(vec![(key, value)])?;
                }
                op::SETITEMS => {
                    let items = self.pop_mark()?;
                    self.set_items(pairs(&items))?;
                }
                op::EMPTY_LIST | op::EMPTY_SET => self.push(Value::Other),
                op::APPEND => drop(self.pop()?),
                op::APPENDS | op::ADDITEMS => drop(self.pop_mark()?),
                op::LIST | op::FROZENSET => {
                    self.pop_mark()?;
                    self.push(Value::Other);
                }

                op::GLOBAL => {
                    let global = format!("{}.{}", self.line()?, self.line()?);
                    self.push(Value::Global(global.into()));
                }
                op::STACK_GLOBAL => {
                    let (name, module) = (self.pop()?, self.pop()?);
                    self.push(match (module, name) {
                        (Value::Text(module), Value::Text(name)) => {
                            Value::Global(format!("{module}.{name}").into())
                        }
                        _ => Value::Other,
                    });
                }
                op::BINPERSID => {
                    let id = self.pop()?;
                    self.push(storage(&id)?);
                }
                op::REDUCE => {
                    let (arguments, function) = (self.pop()?, self.pop()?);
                    self.push(call(&function, &arguments)?);
                }
                op::NEWOBJ => {
                    self.pop()?;
                    self.pop()?;
                    self.push(Value::Other);
                }
                // Sets attributes of the object below, such as a state dict's `_metadata`.
                op::BUILD => drop(self.pop()?),

                op => return Err(format!("unknown pickle opcode 0x{op:02x}")),
            }
        }
    }

    fn take(&mut self, length: usize) -> Result<&[u8], String> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or("the pickle ends early")?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        Ok(self.take(N)?.try_into().expect("as many as were taken"))
    }

    fn byte(&mut self) -> Result<u8, String> {
        self.array().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Result<u32, String> {
        self.array().map(u32::from_le_bytes)
    }

    fn line(&mut self) -> Result<String, String> {
        let length = self.rest.iter().position(|byte| *byte == b'\n').ok_or("the pickle ends early")?;
        let line = String::from_utf8_lossy(self.take(length)?).into_owned();
        self.take(1)?;
        Ok(line)
    }

    fn text(&mut self, length: usize) -> Result<(), String> {
        let text = String::from_utf8_lossy(self.take(length)?).into();
        self.push(Value::Text(text));
        Ok(())
    }

    /// A value that cannot be part of a state dict.
    fn skip(&mut self, length: usize) -> Result<(), String> {
        self.take(length)?;
        self.push(Value::Other);
        Ok(())
    }

    /// A little-endian integer of any length; one that is longer than an i64 is no size.
    fn long(&mut self, length: usize) -> Result<(), String> {
        let bytes = self.take(length)?;
        let value = if length > 8 {
            Value::Other
        } else {
            let sign = if bytes.last().is_some_and(|byte| byte & 0x80 != 0) { 0xff } else { 0 };
            let mut extended = [sign; 8];
            extended[..length].copy_from_slice(bytes);
            Value::Int(i64::from_le_bytes(extended))
        };
        self.push(value);
        Ok(())
    }

    fn push(&mut self, value: Value) {
        self.stack.push(value);
    }

    fn pop(&mut self) -> Result<Value, String> {
        self.stack.pop().ok_or_else(|| UNDERFLOW.to_owned())
    }

    fn top(&self) -> Result<Value, String> {
        self.stack.last().cloned().ok_or_else(|| UNDERFLOW.to_owned())
    }

    fn pop_mark(&mut self) -> Result<Vec<Value>, String> {
        let mark = self.marks.pop().filter(|mark| *mark <= self.stack.len()).ok_or(UNDERFLOW)?;
        Ok(self.stack.split_off(mark))
    }

    fn memoise(&mut self, index: u32) -> Result<(), String> {
        let value = self.top()?;
        self.memo.insert(index, value);
        Ok(())
    }

    fn recall(&mut self, index: u32) -> Result<(), String> {
        let value = self.memo.get(&index).cloned().ok_or("the pickle refers to nothing")?;
        self.push(value);
        Ok(())
    }

    fn set_items(&mut self, items: Vec<(Value, Value)>) -> Result<(), String> {
        if let Value::Dict(entries) = self.top()? {
            entries.borrow_mut().extend(items);
        }
        Ok(())
    }
}

const UNDERFLOW: &str = "the pickle takes more than it has given";

fn dict(entries: Vec<(Value, Value)>) -> Value {
    Value::Dict(Rc::new(RefCell::new(entries)))
}

fn pairs(items: &[Value]) -> Vec<(Value, Value)> {
    items.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect()
}

/// The persistent ids of `torch.save`: `("storage", type, name, location, elements)`.
fn storage(id: &Value) -> Result<Value, String> {
    let Value::Tuple(id) = id else { return Err("unknown kind of storage".to_owned()) };
    let [_, Value::Global(kind), Value::Text(name), ..] = &id[..] else {
        return Err("unknown kind of storage".to_owned());
    };
    let dtype = match kind.rsplit('.').next() {
        Some("DoubleStorage") => DType::F64,
        Some("FloatStorage") => DType::F32,
        Some("HalfStorage") => DType::F16,
        Some("BFloat16Storage") => DType::BF16,
        Some("LongStorage") => DType::I64,
        Some("IntStorage") => DType::I32,
        Some("ShortStorage") => DType::I16,
        Some("CharStorage") => DType::I8,
        Some("ByteStorage" | "BoolStorage") => DType::U8,
        _ => return Ok(Value::Other),
    };
    Ok(Value::Storage(name.clone(), dtype))
}

/// Calls one of the functions that make up a state dict.
fn call(function: &Value, arguments: &Value) -> Result<Value, String> {
    let (Value::Global(function), Value::Tuple(arguments)) = (function, arguments) else {
        return Ok(Value::Other);
    };
    match (&**function, &arguments[..]) {
        ("collections.OrderedDict", _) => Ok(dict(Vec::new())),
        ("torch._utils._rebuild_parameter", [tensor, ..]) => Ok(tensor.clone()),
        ("torch._tensor._rebuild_from_type_v2", [function, _, arguments, ..]) => call(function, arguments),
        ("torch._utils._rebuild_tensor_v2", [storage, Value::Int(offset), shape, strides, ..]) => {
            // A storage of a dtype that no parameter has: not a weight.
            let Value::Storage(storage, dtype) = storage else { return Ok(Value::Other) };
            let layout = Layout {
                storage: storage.to_string(),
                dtype: *dtype,
                offset: size(*offset)?,
                shape: sizes(shape)?,
                strides: sizes(strides)?,
            };
            if layout.shape.len() != layout.strides.len() {
                return Err("a tensor has another number of strides than axes".to_owned());
            }
            Ok(Value::Tensor(Rc::new(layout)))
        }
        _ => Ok(Value::Other),
    }
}

fn sizes(value: &Value) -> Result<Vec<usize>, String> {
    let Value::Tuple(sizes) = value else { return Err("a tensor's shape is not a tuple".to_owned()) };
    sizes
        .iter()
        .map(|value| match value {
            Value::Int(value) => size(*value),
            _ => Err("a tensor's shape is not made of integers".to_owned()),
        })
        .collect()
}

fn size(value: i64) -> Result<usize, String> {
    value.try_into().map_err(|_| format!("a tensor has a negative size, {value}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `{KEY: tensor}` with a tensor of shape (2, 3) and strides (1, 2), as protocol 2 writes it.
    fn pickle(key: &[u8]) -> Vec<u8> {
        let storage =
            b"(X\x07\x00\x00\x00storagectorch\nHalfStorage\nX\x01\x00\x00\x007X\x03\x00\x00\x00cpuK\x06tQ";
        let arguments = [b"(".as_slice(), storage, b"K\x04K\x02K\x03\x86K\x01K\x02\x86\x89}t"].concat();
        [b"\x80\x02}".as_slice(), key, b"ctorch._utils\n_rebuild_tensor_v2\n", &arguments, b"Rs."].concat()
    }

    #[test]
    fn finds_a_tensor_and_its_layout() {
        let expected = Layout {
            storage: "7".to_owned(),
            dtype: DType::F16,
            offset: 4,
            shape: vec![2, 3],
            strides: vec![1, 2],
        };
        let found = tensors(&pickle(b"X\x01\x00\x00\x00a")).unwrap();
        assert_eq!(found, BTreeMap::from([("a".to_owned(), expected.clone())]));
        let found = tensors(&pickle(b"K\x05")).unwrap();
        assert_eq!(found, BTreeMap::from([("5".to_owned(), expected)]));
    }

    #[test]
    fn any_part_of_a_pickle_is_an_error() {
        let pickle = pickle(b"X\x01\x00\x00\x00a");
        for length in 0..pickle.len() {
            assert!(tensors(&pickle[..length]).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn damaged_pickles_are_errors() {
        let cases: [(&[u8], &str); 6] = [
            (b"\x80\x02K\x01.", "it holds a whole Python object, expected a state dict"),
            (b"\x80\x02}\xff.", "unknown pickle opcode 0xff"),
            (b"\x80\x02R.", UNDERFLOW),
            (b"\x80\x02t.", UNDERFLOW),
            (b"\x80\x02h\x05.", "the pickle refers to nothing"),
            (b"\x80\x02K\x01Q.", "unknown kind of storage"),
        ];
        for (pickle, expected) in cases {
            assert_eq!(tensors(pickle).unwrap_err(), expected);
        }
    }

    #[test]
    fn a_dictionary_within_itself_ends() {
        // d = {}; d["a"] = d
        let pickle = b"\x80\x02}q\x00X\x01\x00\x00\x00ah\x00s.";
        assert_eq!(tensors(pickle).unwrap(), BTreeMap::new());
    }
}
