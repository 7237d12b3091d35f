// Measures pages in frames of given widths, and writes the findings to the document as JSON.

// Describes an element that has a problem.
const describe = (element) => `${element.tagName}.${element.getAttribute('class')} ${element.textContent.trim().slice(0, 40)}`;

const luminance = (colour) => {
  const [r, g, b] = colour.match(/[\d.]+/g).map((part) => {
    const share = part / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};

// The contrast of two colours, as WCAG 2 has it.
const contrast = (a, b) => {
  const [dark, light] = [luminance(a), luminance(b)].sort((x, y) => x - y);
  return (light + 0.05) / (dark + 0.05);
};

const groundOf = (element) => {
  for (let of = element; of; of = of.parentElement) {
    const colour = getComputedStyle(of).backgroundColor;
    if (colour !== 'rgba(0, 0, 0, 0)') return colour;
  }
  return 'rgb(255, 255, 255)';
};

const hasText = (element) =>
  [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.textContent.trim());

const overlap = (a, b) =>
  a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3;

function measure(frame) {
  const page = frame.contentDocument;
  const width = frame.contentWindow.innerWidth;
  const all = [...page.body.querySelectorAll('*')];
  const seen = all.filter((element) => element.checkVisibility() && element.tagName !== 'title');
  const loose = seen.filter((element) => !element.closest('.wide'));
  const box = (element) => element.getBoundingClientRect();
  const texts = seen.filter(hasText);
  const isDrawn = (element) => element.closest('svg');
  const colourOf = (element) => getComputedStyle(element)[isDrawn(element) ? 'fill' : 'color'];
  const labels = [...page.querySelectorAll('svg')].map((drawing) => [...drawing.querySelectorAll('text')]);
  const boxes = [...page.querySelectorAll('.wide')];
  return {
    width,
    isDark: frame.contentWindow.matchMedia('(prefers-color-scheme: dark)').matches,
    scrolls: page.documentElement.scrollWidth,
    height: page.documentElement.scrollHeight,
    outside: loose.filter((element) => box(element).right > width + 0.5 || box(element).left < -0.5).map(describe),
    faint: texts.filter((element) => contrast(colourOf(element), groundOf(element)) < 4.5).map(describe),
    small: texts.filter((element) => {
      const scale = isDrawn(element) ? box(isDrawn(element)).width / 400 : 1;
      return parseFloat(getComputedStyle(element).fontSize) * scale < 10.5;
    }).map(describe),
    overlapping: labels.flatMap((labels) => labels.flatMap((a, index) =>
      labels.slice(index + 1).filter((b) => overlap(box(a), box(b))).map((b) => `${describe(a)} / ${describe(b)}`))),
    broken: [...page.querySelectorAll('img')].filter((image) => !image.naturalWidth).map((image) => image.alt),
    unreachable: boxes.filter((box) => box.tabIndex !== 0).map(describe),
  };
}

window.addEventListener('load', () => {
  const frames = [...document.querySelectorAll('iframe')];
  const found = frames.map((frame) => ({ name: frame.title, ...measure(frame) }));
  document.body.replaceChildren();
  const result = document.createElement('pre');
  result.textContent = JSON.stringify(found);
  document.body.append(result);
});
