//! The library beside our kernels, on a GPU or on the emulated device and its stand-in for the library.

use std::path::PathBuf;

use burn::tensor::{Device, Tensor};

use super::*;
use crate::compare::distance;
use crate::linear::cuda::{Product, product};
use crate::linear::tuning::tests::problem;
use crate::linear::tuning::{Decision, decide, decide_as, decisions, learn, use_library};
use crate::testing::cuda_device;

/// A device and the version of its library. It is skipped where there is none.
pub(crate) fn device_and_library() -> Option<(Device, usize)> {
    let device = cuda_device()?;
    let emulated =
        std::env::var_os("CUDA_PATH").map(|at| PathBuf::from(at).join("cublaslt/libcublasLt.so.13"));
    let from: Vec<PathBuf> = emulated.into_iter().filter(|path| path.exists()).collect();
    let version = seek(&device, &from);
    if version.is_none() {
        eprintln!("skipped: there is no cuBLASLt");
    }
    Some((device, version?))
}

fn matrix(device: &Device, seed: u64, [rows, columns]: [usize; 2]) -> CudaTensor {
    let numbers = crate::compare::random(seed, rows, columns);
    primitive(numbers.to_device(device).cast(DType::BF16))
}

fn on_host(tensor: CudaTensor) -> Tensor<2> {
    Tensor::from_data(into_tensor(tensor).into_data().convert::<f32>(), &Device::flex())
}

/// The three products with the shapes of their operands, in sizes that no tile divides.
fn products() -> [(Product, [usize; 3], [[usize; 2]; 2]); 5] {
    [
        (Product::Forward, [67, 72, 40], [[67, 40], [72, 40]]),
        (Product::Forward, [130, 264, 136], [[130, 136], [264, 136]]),
        (Product::Input, [67, 40, 72], [[67, 72], [72, 40]]),
        (Product::Weight, [72, 40, 67], [[67, 72], [67, 40]]),
        (Product::Weight, [8, 16, 700], [[700, 8], [700, 16]]),
    ]
}

#[test]
fn every_product_is_within_the_rounding_of_ours_and_may_be_added_to_another() {
    let Some((device, version)) = device_and_library() else { return };
    learn("").unwrap();
    for (which, size, [a, b]) in products_of(&device) {
        use_library(None);
        let ours = on_host(product(which, &a, &b, 0.5));
        let before = super::products();
        let form = form_of(which, size);
        let algorithms = search(form, &a, 8);
        assert!(!algorithms.is_empty(), "{size:?}");
        let repeatable: Vec<_> = algorithms
            .into_iter()
            .filter(|algorithm| {
                let c = product(which, &a, &b, 1.0);
                is_repeatable(form, *algorithm, [&a, &b, &c])
            })
            .collect();
        assert!(!repeatable.is_empty(), "{size:?}");
        use_library(Some(version));
        let (_, splits, _) = crate::linear::cuda::tiling(which, &a, size);
        for algorithm in repeatable {
            decide(&which.problem(size, splits), Decision::Library(vec![algorithm]));
            let once = product(which, &a, &b, 0.5);
            let error = distance(&on_host(once.clone()), &ours);
            let bound = if which == Product::Weight { 1e-5 } else { 4e-3 };
            assert!(error <= bound, "{size:?}: {error:e}");
            crate::linear::cuda::product_into(which, &a, &b, 0.5, (&once).into(), true);
            let error = distance(&on_host(once), &ours.clone().mul_scalar(2.0));
            assert!(error <= bound, "{size:?}, added: {error:e}");
        }
        assert!(super::products() > before, "{size:?} was not computed by the library");
    }
    use_library(None);
}

fn form_of(which: Product, size: [usize; 3]) -> Form {
    match which {
        Product::Forward => Form::forward(size),
        Product::Input => Form::input(size),
        Product::Weight => Form::weight(size),
    }
}

fn products_of(device: &Device) -> Vec<(Product, [usize; 3], [CudaTensor; 2])> {
    let made = products().into_iter();
    made.map(|(which, size, [a, b])| (which, size, [matrix(device, 1, a), matrix(device, 2, b)])).collect()
}

/// The stand-in for the library finds two algorithms that must not be used: one that splits `k`, and one that
/// gives other bits in a second launch. No GPU is needed to tell: there it shows that there are others.
#[test]
fn an_algorithm_whose_bits_may_vary_is_not_used() {
    let Some((device, _)) = device_and_library() else { return };
    let (a, b) = (matrix(&device, 1, [67, 40]), matrix(&device, 2, [72, 40]));
    let (form, c) = (Form::forward([67, 72, 40]), product(Product::Forward, &a, &b, 1.0));
    let found = search(form, &a, 8);
    let repeatable = found.iter().filter(|one| is_repeatable(form, **one, [&a, &b, &c])).count();
    assert!(repeatable > 0, "{found:?}");
    if std::env::var_os("CUDA_PATH").is_some_and(|at| PathBuf::from(at).join("cublaslt").exists()) {
        assert_eq!((found.len(), repeatable), (3, 2), "{found:?}");
    }
}

#[test]
fn what_reads_a_product_of_unwritten_numbers_is_told_so() {
    let Some((device, _)) = device_and_library() else { return };
    let (a, b) = (matrix(&device, 1, [67, 40]), matrix(&device, 2, [72, 40]));
    let form = Form::forward([67, 72, 40]);
    let Some(mut wrong) = search(form, &a, 1).pop() else { panic!("there is an algorithm") };
    wrong.version += 1;
    let c = product(Product::Forward, &a, &b, 1.0);
    multiply(form, wrong, 1.0, &a, &b, &c, false);
    let right = search(form, &a, 1)[0];
    let further = product(Product::Forward, &a, &b, 1.0);
    // Of a result that was never written, nothing is computed.
    let x = matrix(&device, 3, [67, 72]);
    multiply(Form::input([67, 40, 72]), right, 1.0, &x, &c, &further, false);
    for tensor in [c, further] {
        let read = cubecl::future::block_on(tensor.client.sync_buffers([&tensor.handle]));
        let told = format!("{:?}", read.unwrap_err());
        assert!(told.contains("the algorithm is one of cuBLASLt"), "{told}");
    }
}

#[test]
fn a_decision_is_measured_recorded_and_followed() {
    let Some((device, version)) = device_and_library() else { return };
    learn("").unwrap();
    use_library(Some(version));
    let problems = [
        problem("linear_forward", &[72, 40], 1, 67),
        problem("lora_linear_forward", &[72, 40, 24], 1, 67),
        problem("lora_linears_backward_input", &[40, 24, 72, 16], 1, 67),
        problem("lora_linears_backward_input", &[40, 0, 72, 16], 1, 67),
        // Rows of 12 numbers do not begin at multiples of 16 bytes.
        problem("linear_backward_input", &[40, 12], 1, 67),
    ];
    for problem in &problems {
        problem.measure(&device);
    }
    let lines = decisions();
    assert_eq!(lines.lines().count(), problems.len(), "{lines}");
    assert!(lines.contains(&format!("linear_backward_input 40,12 1 67 by own:{version}\n")), "{lines}");
    decide_as("").unwrap();
    assert_eq!(decisions(), "");
    decide_as(&lines).unwrap();
    assert_eq!(decisions(), lines);
    use_library(None);
}
