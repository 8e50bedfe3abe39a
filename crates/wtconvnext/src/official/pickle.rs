//! Just enough of Python's pickle to find the tensors in what `torch.save` wrote.
//!
//! burn-store's reader is not used for this, because it takes every tensor as contiguous: models trained with
//! `channels_last` have convolution weights in another order, and would load as noise. No object is built: whatever is
//! not a tensor, a number, a string, a tuple or a dictionary is [`Value::Other`].

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

struct Machine<'a> {
    rest: &'a [u8],
    stack: Vec<Value>,
    marks: Vec<usize>,
    memo: HashMap<u32, Value>,
}

impl Machine<'_> {
    fn run(mut self) -> Result<Value, String> {
        loop {
            // The opcodes by their names in Python's pickletools.
            match self.byte()? {
                b'.' => return self.pop(),                                   // STOP
                0x80 => drop(self.take(1)?),                                 // PROTO
                0x95 => drop(self.take(8)?),                                 // FRAME
                b'(' => self.marks.push(self.stack.len()),                   // MARK
                b'0' => drop(self.pop()?),                                   // POP
                b'1' => drop(self.pop_mark()?),                              // POP_MARK
                b'2' => self.push(self.top()?),                              // DUP
                b'q' => self.memoise_at(|m| m.byte().map(u32::from))?,       // BINPUT
                b'r' => self.memoise_at(Self::u32)?,                         // LONG_BINPUT
                0x94 => self.memoise_at(|m| Ok(m.memo.len() as u32))?,       // MEMOIZE
                b'h' => self.recall(|m| m.byte().map(u32::from))?,           // BINGET
                b'j' => self.recall(Self::u32)?,                             // LONG_BINGET
                b'N' | b']' | 0x88 | 0x89 | 0x8f => self.push(Value::Other), // NONE, EMPTY_LIST, NEWTRUE, NEWFALSE, EMPTY_SET
                b'J' => {
                    let value = self.u32()? as i32; // BININT
                    self.push(Value::Int(value.into()));
                }
                b'K' => {
                    let value = self.byte()?; // BININT1
                    self.push(Value::Int(value.into()));
                }
                b'M' => {
                    let value = u16::from_le_bytes(self.array()?); // BININT2
                    self.push(Value::Int(value.into()));
                }
                0x8a => {
                    let length = self.byte()?; // LONG1
                    self.long(length.into())?;
                }
                0x8b => {
                    let length = self.u32()?; // LONG4
                    self.long(length as usize)?;
                }
                b'G' => {
                    self.take(8)?; // BINFLOAT
                    self.push(Value::Other);
                }
                b'X' | b'T' => {
                    let length = self.u32()?; // BINUNICODE, BINSTRING
                    self.text(length as usize)?;
                }
                0x8c | b'U' => {
                    let length = self.byte()?; // SHORT_BINUNICODE, SHORT_BINSTRING
                    self.text(length.into())?;
                }
                b'B' => {
                    let length = self.u32()?; // BINBYTES
                    self.take(length as usize)?;
                    self.push(Value::Other);
                }
                b'C' => {
                    let length = self.byte()?; // SHORT_BINBYTES
                    self.take(length.into())?;
                    self.push(Value::Other);
                }
                b'c' => {
                    let global = format!("{}.{}", self.line()?, self.line()?); // GLOBAL
                    self.push(Value::Global(global.into()));
                }
                0x93 => {
                    let (name, module) = (self.pop()?, self.pop()?); // STACK_GLOBAL
                    self.push(match (module, name) {
                        (Value::Text(module), Value::Text(name)) => {
                            Value::Global(format!("{module}.{name}").into())
                        }
                        _ => Value::Other,
                    });
                }
                b')' => self.push(Value::Tuple(Rc::new([]))), // EMPTY_TUPLE
                op @ 0x85..=0x87 => {
                    let length = usize::from(op - 0x84); // TUPLE1, TUPLE2, TUPLE3
                    let start = self.stack.len().checked_sub(length).ok_or(UNDERFLOW)?;
                    let items = self.stack.split_off(start);
                    self.push(Value::Tuple(items.into()));
                }
                b't' => {
                    let items = self.pop_mark()?; // TUPLE
                    self.push(Value::Tuple(items.into()));
                }
                b'}' => self.push(dict([])), // EMPTY_DICT
                b'd' => {
                    let items = self.pop_mark()?; // DICT
                    self.push(dict(pairs(items)));
                }
                b's' => {
                    let (value, key) = (self.pop()?, self.pop()?); // SETITEM
                    self.set_items([(key, value)])?;
                }
                b'u' => {
                    let items = self.pop_mark()?; // SETITEMS
                    self.set_items(pairs(items))?;
                }
                b'a' => drop(self.pop()?),             // APPEND
                b'e' | 0x90 => drop(self.pop_mark()?), // APPENDS, ADDITEMS
                b'l' | 0x91 => {
                    self.pop_mark()?; // LIST, FROZENSET
                    self.push(Value::Other);
                }
                b'Q' => {
                    let id = self.pop()?; // BINPERSID
                    self.push(storage(&id)?);
                }
                b'R' => {
                    let (arguments, function) = (self.pop()?, self.pop()?); // REDUCE
                    self.push(call(&function, &arguments)?);
                }
                0x81 => {
                    self.pop()?; // NEWOBJ
                    self.pop()?;
                    self.push(Value::Other);
                }
                b'b' => drop(self.pop()?), // BUILD sets attributes, such as a state dict's `_metadata`.
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

    fn memoise_at(&mut self, index: impl Fn(&mut Self) -> Result<u32, String>) -> Result<(), String> {
        let index = index(self)?;
        let value = self.top()?;
        self.memo.insert(index, value);
        Ok(())
    }

    fn recall(&mut self, index: impl Fn(&mut Self) -> Result<u32, String>) -> Result<(), String> {
        let index = index(self)?;
        let value = self.memo.get(&index).cloned().ok_or("the pickle refers to nothing")?;
        self.push(value);
        Ok(())
    }

    fn set_items(&mut self, items: impl IntoIterator<Item = (Value, Value)>) -> Result<(), String> {
        if let Value::Dict(entries) = self.top()? {
            entries.borrow_mut().extend(items);
        }
        Ok(())
    }
}

const UNDERFLOW: &str = "the pickle takes more than it has given";

fn dict(entries: impl Into<Vec<(Value, Value)>>) -> Value {
    Value::Dict(Rc::new(RefCell::new(entries.into())))
}

fn pairs(items: Vec<Value>) -> Vec<(Value, Value)> {
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
        ("collections.OrderedDict", _) => Ok(dict([])),
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
