"""Opens reports in a real browser, as people do: on a phone and on a desktop, light and dark."""

import dataclasses
import shutil

import pytest
from playwright.sync_api import Page, sync_playwright

from focus_jax.evaluation.report import write_comparison, write_report
from tests.synthetic_run import synthetic_config, write_run

pytestmark = pytest.mark.slow

PHONE, DESKTOP = 390, 1280


@pytest.fixture(scope="module")
def browser():
    chromium = shutil.which("chromium")
    assert chromium, "chromium is missing: apt-get install chromium (make check does so where it may)"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    deep = synthetic_config(folder / "deep")
    deep = dataclasses.replace(
        deep,
        model=dataclasses.replace(deep.model, layers=24),
        attention=dataclasses.replace(deep.attention, groups=64, balance="sinkhorn"),
        evaluation=dataclasses.replace(deep.evaluation, allow_noncausal=True),
    )
    seeds = [write_run(synthetic_config(folder / f"a-run-with-a-long-name-and-seed-{n}", seed=n)) for n in range(3)]
    return {
        "one run": write_report(write_run(synthetic_config(folder / "run"), events=True)),
        "deep and not causal": write_report(write_run(deep, events=True)),
        "unfinished": write_report(write_run(synthetic_config(folder / "unfinished"), steps_done=150)),
        "one model": write_report(write_run(synthetic_config(folder / "dense", models=("dense",)))),
        "seeds": write_comparison(seeds, folder / "comparison.html"),
    }


@pytest.fixture(params=["light", "dark"])
def scheme(request):
    return request.param


@pytest.fixture(params=[PHONE, DESKTOP], ids=["phone", "desktop"])
def width(request):
    return request.param


@pytest.fixture
def open_page(browser, scheme, width):
    """Opens a file and fails on whatever the browser complains about, and on any request but for that file."""
    context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme)
    complaints, requests = [], []

    def open_file(path) -> Page:
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri())
        assert [url for url in requests if not url.startswith("data:")] == [path.as_uri()]
        return page

    yield open_file
    assert complaints == []
    context.close()


@pytest.mark.parametrize("name", ["one run", "deep and not causal", "unfinished", "one model", "seeds"])
def test_a_report_opens_without_complaints_and_shows_its_figures(open_page, reports, name, width, tmp_path):
    page = open_page(reports[name])
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "the page scrolls sideways"
    figures = page.locator("figure svg").all()
    assert len(figures) >= 2
    for figure in figures:
        box = figure.bounding_box()
        assert box["width"] > 300
        assert box["height"] > 200
        assert _drawn(figure) >= 1
        assert figure.locator("text").first.is_visible()
    page.screenshot(path=tmp_path / f"{name}.png", full_page=True)


def test_text_and_lines_stand_out_from_the_page(open_page, reports):
    """The contrast that WCAG asks for: 4.5 for text, 3 for what is drawn."""
    page = open_page(reports["one run"])
    contrast = page.evaluate(_CONTRAST)
    assert {name: ratio for name, ratio in contrast.items() if ratio < (3 if "series" in name else 4.5)} == {}


def test_figures_take_the_colours_of_the_page(open_page, reports, scheme):
    page = open_page(reports["one run"])
    label, page_text = page.evaluate(
        "[getComputedStyle(document.querySelector('figure svg text')).fill,"
        " getComputedStyle(document.querySelector('.muted')).color]"
    )
    assert label == page_text
    brightness = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0]")
    assert (brightness > 128) == (scheme == "light")


def _drawn(figure) -> int:
    """Lines and points in the page's series colours, with an extent."""
    return figure.evaluate(
        """svg => [...svg.querySelectorAll('path, use')].filter(drawn => {
            const box = drawn.getBBox();
            return drawn.getAttribute('style')?.includes('--series-') && box.width > 2;
        }).length"""
    )


_CONTRAST = """() => {
    const style = getComputedStyle(document.documentElement);
    const luminance = name => {
        const hex = style.getPropertyValue(name).trim().slice(1);
        const [r, g, b] = [0, 2, 4].map(i => parseInt(hex.slice(i, i + 2), 16) / 255)
            .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const ratio = (one, other) => {
        const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
        return (high + 0.05) / (low + 0.05);
    };
    const series = [...Array(7).keys()].map(i => `--series-${i}`);
    return Object.fromEntries([
        ...['--ink', '--muted', ...series].map(name => [`${name} on the page`, ratio(name, '--page')]),
        ['--ink on raised', ratio('--ink', '--raised')],
        ['--ink on a warning', ratio('--ink', '--warn-page')],
    ]);
}"""
