//! The pictures of a run, drawn as SVG and rendered to PNG from that.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use plotters::coord::Shift;
use plotters::coord::combinators::WithKeyPoints;
use plotters::prelude::*;
use resvg::{tiny_skia, usvg};

use crate::cases::Pass;
use crate::report::table::number;
use crate::results::{Results, Row, Status};

/// Colours that people with the common colour deficiencies tell apart (Okabe and Ito).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(213, 94, 0),
    RGBColor(90, 90, 90),
];
const WIDTH: u32 = 900;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn draw_error(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("cannot draw: {error}")
}

/// Values of one colour; `None` leaves a gap.
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) values: Vec<Option<f64>>,
}

/// Writes `NAME.svg` and `NAME.png`.
///
/// # Errors
///
/// If a file cannot be written.
pub(crate) fn save(directory: &Path, name: &str, svg: &str) -> anyhow::Result<()> {
    std::fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
    let path = directory.join(format!("{name}.svg"));
    std::fs::write(&path, svg).with_context(|| format!("cannot write {}", path.display()))?;
    let path = directory.join(format!("{name}.png"));
    std::fs::write(&path, png(svg)?).with_context(|| format!("cannot write {}", path.display()))
}

/// What the pictures of a run show; a picture is called `SUBJECT-PASS`.
const SUBJECTS: [&str; 4] = ["speedup", "memory", "pixel", "floor"];

/// Removes the pictures of an earlier run: one that this run does not draw again would be taken for its own.
///
/// # Errors
///
/// If a file cannot be removed.
pub(crate) fn remove_stale(directory: &Path) -> anyhow::Result<()> {
    for subject in SUBJECTS {
        for pass in [Pass::Forward, Pass::Backward, Pass::Train] {
            for extension in ["svg", "png"] {
                let path = directory.join(format!("{subject}-{pass}.{extension}"));
                match std::fs::remove_file(&path) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                        return Err(error).with_context(|| format!("cannot remove {}", path.display()));
                    }
                    _ => {}
                }
            }
        }
    }
    Ok(())
}

/// Renders with a font of the program's own: machines without a screen often have none.
fn png(svg: &str) -> anyhow::Result<Vec<u8>> {
    let mut fonts = usvg::fontdb::Database::new();
    fonts.load_font_data(dejavu::sans::regular().to_vec());
    fonts.set_sans_serif_family("DejaVu Sans");
    let options = usvg::Options {
        font_family: "DejaVu Sans".to_owned(),
        fontdb: Arc::new(fonts),
        ..usvg::Options::default()
    };
    let tree = usvg::Tree::from_str(svg, &options).context("the drawn SVG does not parse")?;
    let size = tree.size().to_int_size();
    let mut pixels = tiny_skia::Pixmap::new(size.width(), size.height()).context("an empty picture")?;
    resvg::render(&tree, tiny_skia::Transform::default(), &mut pixels.as_mut());
    pixels.encode_png().context("cannot encode a PNG")
}

/// All pictures of a run that has something for them, by name.
pub(crate) fn of_results(results: &Results) -> anyhow::Result<Vec<(String, String)>> {
    let measured: Vec<&Row> =
        results.rows.iter().filter(|row| row.status == Status::Measured && row.timing.is_some()).collect();
    let mut plots = Vec::new();
    for pass in [Pass::Forward, Pass::Backward, Pass::Train] {
        let rows: Vec<&Row> = measured.iter().copied().filter(|row| row.key.pass == pass).collect();
        if let Some(svg) = speed_ups(&rows, pass)? {
            plots.push((format!("speedup-{pass}"), svg));
        }
        if let Some(svg) = memory(&rows, pass)? {
            plots.push((format!("memory-{pass}"), svg));
        }
        if let Some(svg) = time_per_pixel(&rows, pass)? {
            plots.push((format!("pixel-{pass}"), svg));
        }
        if let Some(svg) = against_floor(&rows, pass)? {
            plots.push((format!("floor-{pass}"), svg));
        }
    }
    Ok(plots)
}

/// `64x96x56x56 L5`, with what else the rows differ in.
fn label(row: &Row, rows: &[&Row]) -> String {
    let key = &row.key;
    let mut label = format!("{} L{}", key.shape, key.levels);
    if rows.iter().any(|other| other.key.dtype != key.dtype) {
        label += &format!(" {}", key.dtype);
    }
    if rows.iter().any(|other| other.key.layout != key.layout) {
        label += &format!(" {}", key.layout);
    }
    label
}

fn speed_ups(rows: &[&Row], pass: Pass) -> anyhow::Result<Option<String>> {
    let fused = rows.iter().any(|row| row.key.route == "fused");
    let route = if fused { "fused" } else { "tensor-ops" };
    let layer: Vec<&Row> = rows.iter().copied().filter(|row| row.key.route == route).collect();
    let series = |name: &str, value: fn(&Row) -> Option<f64>| Series {
        name: name.to_owned(),
        values: layer.iter().map(|row| value(row)).collect(),
    };
    let mut all = vec![
        series("over Burn's conv2d 7x7", |row| row.over_conv2d_7x7),
        series("over the layer as depthwise 7x7", |row| row.over_depthwise_7x7),
    ];
    if fused {
        all.insert(0, series("over tensor ops", |row| row.over_tensor_ops));
    }
    let labels: Vec<String> = layer.iter().map(|row| label(row, rows)).collect();
    bars(&format!("Times as fast: {route}, {pass}"), "times as fast", Axis::Ratios, &labels, &all)
}

fn memory(rows: &[&Row], pass: Pass) -> anyhow::Result<Option<String>> {
    let mut layers: Vec<&Row> = Vec::new();
    let mut routes: Vec<&str> = Vec::new();
    let same_input = |a: &Row, b: &Row| {
        (a.key.shape, a.key.dtype, a.key.layout) == (b.key.shape, b.key.dtype, b.key.layout)
    };
    for &row in rows {
        let known = |other: &&Row| same_input(row, other) && row.key.levels == other.key.levels;
        if row.key.levels > 0 && !layers.iter().any(known) {
            layers.push(row);
        }
        if !routes.contains(&row.key.route.as_str()) {
            routes.push(&row.key.route);
        }
    }
    let mebibytes = |layer: &Row, route: &str| {
        // A depthwise row has no levels: it stands beside every level of its shape.
        let beside = |row: &&&Row| {
            row.key.route == route
                && same_input(row, layer)
                && (row.key.levels == 0 || row.key.levels == layer.key.levels)
        };
        Some(rows.iter().find(beside)?.peak_memory_bytes? as f64 / f64::from(1 << 20))
    };
    let labels: Vec<String> = layers.iter().map(|row| label(row, rows)).collect();
    let series: Vec<Series> = routes
        .iter()
        .map(|route| Series {
            name: (*route).to_owned(),
            values: layers.iter().map(|layer| mebibytes(layer, route)).collect(),
        })
        .collect();
    bars(&format!("Peak added memory, {pass}"), "MiB", Axis::Linear, &labels, &series)
}

/// Where bars begin and how their axis goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Axis {
    /// At 0, linear.
    Linear,
    /// At the decade below the smallest value, logarithmic.
    Decades,
    /// At 1, where nothing changes, logarithmic.
    Ratios,
}

impl Axis {
    /// Of the values, the range from `0.0` to `1.0` along the axis.
    fn range(self, smallest: f64, largest: f64) -> [f64; 2] {
        match self {
            Self::Linear => [0.0, largest],
            Self::Decades => [smallest.log10().floor(), largest.log10()],
            Self::Ratios => [smallest.min(1.0).log10().floor(), largest.max(1.2).log10()],
        }
    }

    fn position(self, value: f64) -> f64 {
        if self == Self::Linear { value } else { value.log10() }
    }

    /// Values to mark between `from` and `to`.
    fn marks(self, [from, to]: [f64; 2]) -> Vec<f64> {
        match self {
            Self::Linear => {
                let step = 10f64.powf(to.log10().floor());
                let step = if to / step < 3.0 { step / 2.0 } else { step };
                (0..=(to / step).floor() as i32).map(|mark| f64::from(mark) * step).collect()
            }
            _ => {
                /// The logarithm of a mark at an end of the range may lie beyond it.
                const ROUNDING: f64 = 1e-9;
                // Few decades leave room for more marks, and need them: there is one between a value and its double.
                let steps: &[f64] = match to - from {
                    decades if decades < 1.0 => &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0],
                    decades if decades < 3.0 => &[1.0, 2.0, 5.0],
                    _ => &[1.0],
                };
                (from.floor() as i32..=to.floor() as i32)
                    .flat_map(|decade| steps.iter().map(move |step| step * 10f64.powi(decade)))
                    .filter(|mark| (from - ROUNDING..=to + ROUNDING).contains(&mark.log10()))
                    .collect()
            }
        }
    }

    /// The words at the axis of what is measured in `unit`.
    fn words(self, unit: &str) -> String {
        match self {
            Self::Linear => unit.to_owned(),
            Self::Decades | Self::Ratios => format!("{unit}, logarithmic"),
        }
    }
}

/// Horizontal bars in groups, `unit` at their axis; `None` without any value.
pub(crate) fn bars(
    title: &str,
    unit: &str,
    axis: Axis,
    labels: &[String],
    series: &[Series],
) -> anyhow::Result<Option<String>> {
    const BAR: i32 = 12;
    const GAP: i32 = 10;
    const VALUE: i32 = 60;
    let values = || series.iter().flat_map(|series| series.values.iter().flatten().copied());
    let positive = || values().filter(|value| *value > 0.0 && value.is_finite());
    let Some(largest) = positive().max_by(f64::total_cmp) else { return Ok(None) };
    let [from, to] = axis.range(positive().fold(largest, f64::min), largest);
    let left = 20 + 8 * labels.iter().map(|label| label.chars().count()).max().unwrap_or(0) as i32;
    let right = WIDTH as i32 - VALUE;
    let width = f64::from(right - left) / (to - from).max(f64::MIN_POSITIVE);
    let at = |value: f64| left + ((axis.position(value) - from) * width) as i32;

    let head = Head::new(title, series.iter().map(|series| series.name.as_str()));
    let top = head.bottom;
    let group = BAR * series.len() as i32 + GAP;
    let bottom = top + group * labels.len() as i32 + 10;
    let height = bottom + 46;
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, height as u32)).into_drawing_area();
        area.fill(&WHITE).map_err(draw_error)?;
        head.draw(&area)?;
        text(&area, &axis.words(unit), (left, bottom + 24), 12)?;
        for mark in axis.marks([from, to]) {
            let x = at(mark);
            let line = PathElement::new(vec![(x, top - 4), (x, bottom)], BLACK.mix(0.2));
            area.draw(&line).map_err(draw_error)?;
            text(&area, &number(Some(mark)), (x - 8, bottom + 6), 12)?;
        }
        let zero = if axis == Axis::Ratios { at(1.0) } else { left };
        for (row, label) in labels.iter().enumerate() {
            let y = top + group * row as i32;
            text(&area, label, (12, y + (group - GAP) / 2 - 6), 12)?;
            for (index, series) in series.iter().enumerate() {
                let y = y + BAR * index as i32;
                let Some(value) = series.values[row].filter(|value| *value > 0.0) else { continue };
                let (x, colour) = (at(value), COLOURS[index % COLOURS.len()]);
                let corners = [(x.min(zero), y), (x.max(zero).max(x.min(zero) + 1), y + BAR - 1)];
                area.draw(&Rectangle::new(corners, colour.filled())).map_err(draw_error)?;
                text(&area, &number(Some(value)), (x.max(zero) + 4, y), 11)?;
            }
        }
        area.present().map_err(draw_error)?;
    }
    Ok(Some(svg))
}

/// What stands above a picture, where it hides no point: the title, and the name and colour of each series.
struct Head<'a> {
    title: &'a str,
    /// With the upper left corner of each.
    names: Vec<(&'a str, (i32, i32))>,
    /// Where the picture may begin.
    bottom: i32,
}

impl<'a> Head<'a> {
    const LEGEND: (i32, i32) = (20, 46);
    const LINE: i32 = 18;

    fn new(title: &'a str, names: impl Iterator<Item = &'a str>) -> Self {
        let (mut x, mut y) = Self::LEGEND;
        let place = |name: &'a str| {
            let width = 30 + 8 * name.chars().count() as i32;
            if x > Self::LEGEND.0 && x + width > WIDTH as i32 {
                (x, y) = (Self::LEGEND.0, y + Self::LINE);
            }
            let at = (x, y);
            x += width;
            (name, at)
        };
        let names = names.map(place).collect();
        Self { title, names, bottom: y + Self::LINE + 8 }
    }

    fn draw(&self, area: &Area<'_>) -> anyhow::Result<()> {
        text(area, self.title, (20, 12), 18)?;
        for (index, &(name, (x, y))) in self.names.iter().enumerate() {
            let corners = [(x, y), (x + 11, y + 11)];
            let swatch = Rectangle::new(corners, COLOURS[index % COLOURS.len()].filled());
            area.draw(&swatch).map_err(draw_error)?;
            text(area, name, (x + 16, y), 12)?;
        }
        Ok(())
    }
}

fn text(area: &Area<'_>, words: &str, at: (i32, i32), size: i32) -> anyhow::Result<()> {
    area.draw(&Text::new(words.to_owned(), at, ("sans-serif", size).into_font())).map_err(draw_error)
}

/// Time against the time that the floor's bytes take at the speed of the copy.
fn against_floor(rows: &[&Row], pass: Pass) -> anyhow::Result<Option<String>> {
    let points = |row: &&Row| {
        let median = row.timing?.median_ms;
        Some((median / row.floor_ratio?, median))
    };
    let series = by_route(rows, points);
    curves(
        &format!("Time against the floor, {pass}"),
        ["bytes of the floor at the speed of a device copy, ms", "ms"],
        &series,
        Style { joined: false, diagonal: true },
    )
}

/// Nanoseconds a pixel over the side of the plane.
fn time_per_pixel(rows: &[&Row], pass: Pass) -> anyhow::Result<Option<String>> {
    let side = |row: &Row| {
        let [_, _, height, width] = row.key.shape.0;
        ((height * width) as f64).sqrt()
    };
    let series = by_route(rows, |row| Some((side(row), row.ns_per_pixel?)));
    let title = format!("Time per pixel over the side of a plane, {pass}");
    curves(&title, ["side", "ns a pixel"], &series, Style { joined: true, diagonal: false })
}

/// Points by route, dtype and layout.
fn by_route(rows: &[&Row], point: impl Fn(&&Row) -> Option<(f64, f64)>) -> Vec<(String, Vec<(f64, f64)>)> {
    let mut series: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
    for row in rows {
        let Some(point) = point(row) else { continue };
        let mut name = row.key.route.clone();
        if rows.iter().any(|other| other.key.dtype != row.key.dtype) {
            name += &format!(" {}", row.key.dtype);
        }
        if rows.iter().any(|other| other.key.layout != row.key.layout) {
            name += &format!(" {}", row.key.layout);
        }
        match series.iter_mut().find(|(other, _)| *other == name) {
            Some((_, points)) => points.push(point),
            None => series.push((name, vec![point])),
        }
    }
    for (_, points) in &mut series {
        points.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    }
    series
}

#[derive(Clone, Copy)]
struct Style {
    joined: bool,
    /// Whether to draw where both axes are equal.
    diagonal: bool,
}

/// Points on two logarithmic axes; `None` without any.
fn curves(
    title: &str,
    [x_words, y_words]: [&str; 2],
    series: &[(String, Vec<(f64, f64)>)],
    style: Style,
) -> anyhow::Result<Option<String>> {
    /// Height of the axes with their labels.
    const PLOT: u32 = 500;
    let points = || series.iter().flat_map(|(_, points)| points.iter().copied());
    if points().next().is_none() {
        return Ok(None);
    }
    let range = |of: fn((f64, f64)) -> f64| {
        let (from, to) = points().map(of).fold((f64::MAX, f64::MIN), |(a, b), v| (a.min(v), b.max(v)));
        from * 0.7..to * 1.4
    };
    let (x_range, mut y_range) = (range(|point| point.0), range(|point| point.1));
    if style.diagonal {
        y_range.start = y_range.start.min(x_range.start);
    }
    let diagonal = [x_range.start, x_range.end.min(y_range.end)];
    let head = Head::new(title, series.iter().map(|(name, _)| name.as_str()));
    let mut svg = String::new();
    {
        let height = head.bottom as u32 + PLOT;
        let area = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        area.fill(&WHITE).map_err(draw_error)?;
        head.draw(&area)?;
        let (_, plot) = area.split_vertically(head.bottom);
        let mut chart = ChartBuilder::on(&plot)
            .margin(14)
            .x_label_area_size(42)
            .y_label_area_size(70)
            .build_cartesian_2d(log_axis(x_range), log_axis(y_range))
            .map_err(draw_error)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .x_desc(x_words)
            .y_desc(y_words)
            .x_label_formatter(&|value| number(Some(*value)))
            .y_label_formatter(&|value| number(Some(*value)))
            .draw()
            .map_err(draw_error)?;
        if style.diagonal {
            let line = LineSeries::new(diagonal.map(|value| (value, value)), BLACK.mix(0.5));
            chart.draw_series(line).map_err(draw_error)?;
        }
        for (index, (_, points)) in series.iter().enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            if style.joined {
                chart.draw_series(LineSeries::new(points.iter().copied(), colour)).map_err(draw_error)?;
            }
            let circles = points.iter().map(|&point| Circle::new(point, 3, colour.filled()));
            chart.draw_series(circles).map_err(draw_error)?;
        }
        area.present().map_err(draw_error)?;
    }
    Ok(Some(svg))
}

fn log_axis(range: Range<f64>) -> WithKeyPoints<LogCoord<f64>> {
    let marks = Axis::Decades.marks([range.start.log10(), range.end.log10()]);
    range.log_scale().with_key_points(marks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::compare_routes;
    use crate::results::samples::{results, row};

    #[test]
    fn pictures_of_an_earlier_run_do_not_stay() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for name in ["floor-forward.png", "memory-train.svg", "mine.png"] {
            std::fs::write(at(name), "").unwrap();
        }
        remove_stale(directory.path()).unwrap();
        assert!(!at("floor-forward.png").exists() && !at("memory-train.svg").exists());
        assert!(at("mine.png").exists());
        remove_stale(&at("nowhere")).unwrap();
    }

    #[test]
    fn every_picture_of_a_run_is_drawn_and_rendered() {
        let mut rows = vec![
            row("conv2d-7x7", 0, Pass::Train, 6.0),
            row("tensor-ops", 2, Pass::Train, 8.0),
            row("fused", 2, Pass::Train, 2.0),
            row("fused", 3, Pass::Train, 0.002),
        ];
        compare_routes(&mut rows);
        let plots = of_results(&results(rows)).unwrap();
        let names: Vec<&str> = plots.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, SUBJECTS.map(|subject| format!("{subject}-train")));
        for (name, svg) in &plots {
            assert!(svg.contains("</svg>") && svg.contains("<text"), "{name}");
            let words = ["times as fast, logarithmic", "MiB", "ns a pixel", "ms"];
            let subject = SUBJECTS.iter().position(|subject| name.starts_with(subject)).unwrap();
            assert!(svg.lines().any(|line| line.trim() == words[subject]), "{name}: {svg}");
            assert!(png(svg).unwrap().starts_with(b"\x89PNG"), "{name}");
        }
        assert!(plots[0].1.contains("2x8x16x16 L2"));
    }

    #[test]
    fn no_point_is_where_the_legend_is() {
        // Far apart, so that the uppermost point is close to the edge of its axes.
        let rows = [("fused", 1e-3), ("tensor-ops", 1e3)].map(|(route, ms)| row(route, 2, Pass::Forward, ms));
        for (name, svg) in of_results(&results(rows.to_vec())).unwrap() {
            let attribute = |element: &str, attribute: &str| -> i32 {
                let value =
                    element.split(&format!(" {attribute}=\"")).nth(1).and_then(|rest| rest.split('"').next());
                value.unwrap_or_else(|| panic!("no {attribute} in {element}")).parse().unwrap()
            };
            let legend = svg.split("<rect ").filter(|element| element.contains("width=\"11\" height=\"11\""));
            let bottom = legend.map(|element| attribute(&format!(" {element}"), "y") + 11).max().unwrap();
            for circle in svg.split("<circle").skip(1) {
                assert!(attribute(circle, "cy") - 3 > bottom, "{name}: {circle} above {bottom}");
            }
        }
    }

    #[test]
    fn axes_begin_where_their_bars_do() {
        assert_eq!(Axis::Linear.range(3.0, 250.0), [0.0, 250.0]);
        assert_eq!(Axis::Linear.marks([0.0, 250.0]), [0.0, 50.0, 100.0, 150.0, 200.0, 250.0]);
        assert_eq!(Axis::Decades.range(30.0, 1000.0), [1.0, 3.0]);
        assert_eq!(Axis::Decades.marks([1.0, 3.0]), [10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0]);
        assert_eq!(Axis::Decades.marks([0.0, 3.0]), [1.0, 10.0, 100.0, 1000.0]);
        assert_eq!(Axis::Decades.marks([0.2, 0.8]), [2.0, 3.0, 4.0, 5.0, 6.0]);
        assert_eq!(Axis::Decades.marks([-0.5, 0.8]), [0.5, 1.0, 2.0, 5.0]);
        assert_eq!(Axis::Ratios.range(0.5, 10.0), [-1.0, 1.0]);
        assert_eq!(Axis::Ratios.range(2.0, 10.0), [0.0, 1.0]);
    }

    #[test]
    fn nothing_measured_draws_nothing() {
        let mut refused = row("fused", 2, Pass::Train, 2.0);
        refused.status = Status::Refused;
        assert!(of_results(&results(vec![refused])).unwrap().is_empty());
    }

    #[test]
    fn pictures_have_words_in_them_without_fonts_of_the_system() {
        let words = r#"<svg xmlns="http://www.w3.org/2000/svg" width="60" height="20"><text x="2" y="15" font-family="sans-serif" font-size="14">words</text></svg>"#;
        let without = words.replace(">words<", "><");
        assert_ne!(png(words).unwrap(), png(&without).unwrap());
    }
}
