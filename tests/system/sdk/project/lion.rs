// lion.cc in Rust: rustc --edition 2021 -C panic=abort -O --crate-type cdylib lion.rs
#[path = "engine.rs"] // of the SDK, copied or linked here
mod engine;
use engine::*;
use std::mem::size_of;
use std::os::raw::{c_char, c_void};

#[repr(C)]
struct Lion {
    functions: *const OptimizerFunctions, // what crosses: a pointer to this
    beta1: f32,
    beta2: f32,
    weight_decay: f32,
}

const OK: StatusValue = StatusValue { code: 0, rank: -1, message: std::ptr::null_mut() };

// A text of a fixed size, as constants have them.
const fn text<const N: usize>(word: &str) -> [c_char; N] {
    let (mut fixed, bytes, mut i) = ([0; N], word.as_bytes(), 0);
    while i < bytes.len() {
        fixed[i] = bytes[i] as c_char;
        i += 1;
    }
    fixed
}

unsafe fn is(view: TextView, word: &str) -> bool {
    std::slice::from_raw_parts(view.text as *const u8, view.length as usize) == word.as_bytes()
}

unsafe extern "C" fn destroy(this: *mut c_void) {
    drop(Box::from_raw(this as *mut Lion));
}

unsafe extern "C" fn query(this: *mut c_void, id: TextView, layout: u64) -> *mut c_void {
    let fits = layout == 0 || layout == OPTIMIZER_LAYOUT;
    if fits && is(id, OPTIMIZER_ID) { this } else { std::ptr::null_mut() }
}

unsafe extern "C" fn traits(_: *mut c_void, out: *mut OptimizerTraits) {
    let size = (*out).struct_size.min(size_of::<OptimizerTraits>() as u64);
    let traits = OptimizerTraits {
        struct_size: size,
        gate: UPDATE_GATE_SPAN,
        state_count: 1,
        state_names: [text("momentum"), text(""), text(""), text("")],
        state_format_version: 1,
    };
    std::ptr::copy_nonoverlapping(&traits as *const _ as *const u8, out as *mut u8, size as usize);
}

unsafe extern "C" fn update(this: *mut c_void, call: *const UpdateCall) -> StatusValue {
    let (lion, call) = (&*(this as *const Lion), &*call);
    let count = call.count as usize;
    if count == 0 {
        return OK;
    }
    let value = std::slice::from_raw_parts_mut(call.value, count);
    let gradient = std::slice::from_raw_parts(call.gradient, count);
    let momentum = std::slice::from_raw_parts_mut(call.states[0], count);
    let decay = lion.weight_decay * call.weight_decay_scale;
    for i in 0..count {
        let gradient = gradient[i] * call.gradient_scale;
        let mixed = lion.beta1 * momentum[i] + (1.0 - lion.beta1) * gradient;
        let sign = (mixed > 0.0) as i32 as f32 - (mixed < 0.0) as i32 as f32;
        value[i] -= call.learning_rate * (sign + decay * value[i]);
        momentum[i] = lion.beta2 * momentum[i] + (1.0 - lion.beta2) * gradient;
    }
    OK
}

struct Table(OptimizerFunctions);
unsafe impl Sync for Table {}
static FUNCTIONS: Table = Table(OptimizerFunctions {
    head: ObjectHead {
        head: TableHead {
            struct_size: size_of::<OptimizerFunctions>() as u64,
            layout: OPTIMIZER_LAYOUT,
            older: std::ptr::null(),
            older_count: 0,
        },
        destroy: Some(destroy),
        query: Some(query),
    },
    traits: Some(traits),
    Update: Some(update),
});

unsafe fn number(options: &Array<OptionValue>, name: &str) -> f32 {
    (0..options.count as usize)
        .map(|i| {
            let first = options.elements as *const u8;
            &*(first.add(i * options.stride as usize) as *const OptionValue)
        })
        .find(|option| is(option.name, name))
        .map_or(0.0, |option| option.number as f32)
}

unsafe extern "C" fn create(
    _: *mut Host,
    options: *const Array<OptionValue>,
    out: *mut *mut Object,
) -> StatusValue {
    let options = &*options;
    let lion = Lion {
        functions: &FUNCTIONS.0,
        beta1: number(options, "beta1"),
        beta2: number(options, "beta2"),
        weight_decay: number(options, "weight_decay"),
    };
    *out = Box::into_raw(Box::new(lion)) as *mut Object;
    OK
}

const fn fraction(name: &str, value: &str, doc: &str) -> OptionSpec {
    OptionSpec {
        scope: text(""),
        name: text(name),
        r#type: OPTION_TYPE_FLOAT,
        reserved: 0,
        default_value: text(value),
        min: 0.0,
        max: 1.0,
        choices: text(""),
        doc: text(doc),
    }
}

#[repr(C)]
pub struct Descriptor {
    header: PluginHeader,
    options: [OptionSpec; 3],
}
unsafe impl Sync for Descriptor {}

#[no_mangle]
#[allow(non_upper_case_globals)]
pub static engine_plugin_v0: Descriptor = Descriptor {
    header: PluginHeader {
        magic: PLUGIN_MAGIC,
        abi_major: ABI_MAJOR,
        abi_minor: ABI_MINOR,
        min_host_minor: ABI_MINOR,
        reserved: 0,
        size_bytes: size_of::<Descriptor>() as u32,
        kind: PLUGIN_KIND_OPTIMIZER,
        op_count: 0,
        op_offset: 0,
        option_count: 3,
        option_offset: size_of::<PluginHeader>() as u32,
        option_stride: size_of::<OptionSpec>() as u32,
        more_reserved: 0,
        host: LayoutList { layouts: [HOST_LAYOUT, 0, 0, 0] },
        role: LayoutList { layouts: [OPTIMIZER_LAYOUT, 0, 0, 0] },
        options: LayoutList { layouts: [OPTIONS_LAYOUT, 0, 0, 0] },
        name: text("lion_rust"),
        version: text("1.0.0"),
        device: text("any"),
        doc: text("Lion in Rust"),
        compiler: text("rustc"),
        create: Some(create),
    },
    options: [
        fraction("beta1", "0.9", "weight of the momentum in the sign"),
        fraction("beta2", "0.99", "decay of the momentum"),
        fraction("weight_decay", "0", "decoupled, times the learning rate"),
    ],
};
