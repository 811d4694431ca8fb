'use strict';
// Charts as SVG, drawn from series {span, at: [x], figures: {name: {mean, low, high}}}. Text only ever becomes text
// nodes and attributes of drawings: nothing here parses markup.

function element(tag, properties, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(properties || {})) {
    if (key in made && key !== 'list') made[key] = value; else made.setAttribute(key, value);
  }
  made.append(...children.filter(child => child !== null && child !== undefined));
  return made;
}

function drawing(tag, attributes, parent) {
  const made = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (parent) parent.append(made);
  return made;
}

const formats = {
  number(value) {
    const size = Math.abs(value);
    if (value === 0) return '0';
    if (size >= 1e6) return (value / 1e6).toPrecision(3) + ' M';
    if (size >= 1000) return Math.round(value).toLocaleString('en-US');
    if (size < 0.001) return value.toExponential(1);
    return String(Number(value.toPrecision(size >= 100 ? 4 : 3)));
  },
  share(value) {
    return Number((100 * value).toPrecision(Math.abs(value) >= 0.1 ? 3 : 2)) + ' %';
  },
  count(value) {
    return Number(value.toFixed(1)).toLocaleString('en-US');
  },
  seconds(value) {
    const size = Math.abs(value);
    if (value === 0) return '0 s';
    if (size < 1e-3) return formats.number(1e6 * value) + ' µs';
    if (size < 1) return formats.number(1e3 * value) + ' ms';
    return size < 120 ? formats.number(value) + ' s' : formats.clock(1e3 * value);
  },
  clock(milliseconds) {
    const seconds = Math.floor(milliseconds / 1000);
    const two = number => String(number).padStart(2, '0');
    const minutes = two(Math.floor(seconds / 60) % 60) + ':' + two(seconds % 60);
    return seconds >= 3600 ? Math.floor(seconds / 3600) + ':' + minutes : minutes;
  },
};

function ticks(low, high, most) {
  const rough = (high - low) / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map(factor => factor * power).find(candidate => candidate >= rough * 0.999);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-9; at += step) {
    found.push(Math.abs(at) < step * 1e-9 ? 0 : at);
  }
  return found;
}

// An exponential mean that has no weight on what came before the first value.
function smoothed(values, weight) {
  if (!weight) return values;
  let sum = 0, total = 0;
  return values.map(value => {
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    total = weight * total + (1 - weight);
    return sum / total;
  });
}

function nearest(sorted, x) {
  let low = 0, high = sorted.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < x) low = middle + 1; else high = middle;
  }
  return low > 0 && x - sorted[low - 1] < sorted[low] - x ? low - 1 : low;
}

// What all charts share: which range they show and where the cursor is, by the axis that they are drawn over.
const view = {smoothing: 0, axis: 'step', range: {}, cursor: null, charts: new Set()};
const tooltip = () => document.getElementById('tooltip');
const margin = {left: 54, right: 12, top: 8, bottom: 22};

class Chart {
  // spec: {title, help, axis, format, lines(): [{label, color, dash, at, mean, low, high, dots}], stacked, zero, alarms()}
  constructor(spec) {
    this.spec = spec;
    this.logarithmic = false;
    this.log = element('button', {type: 'button', textContent: 'log', title: 'Logarithmic scale'});
    this.log.setAttribute('aria-pressed', 'false');
    this.log.addEventListener('click', () => {
      this.logarithmic = !this.logarithmic;
      this.log.setAttribute('aria-pressed', String(this.logarithmic));
      this.draw();
    });
    this.legend = element('ul', {className: 'legend'});
    this.plot = element('div', {className: 'plot'});
    this.card = element('article', {className: 'card'},
        element('div', {className: 'card-head'}, element('h3', {textContent: spec.title}), this.log),
        element('p', {textContent: spec.help || ''}), this.legend, this.plot);
    view.charts.add(this);
    new ResizeObserver(() => this.plot.clientWidth !== this.drawnWidth && this.draw()).observe(this.plot);
  }

  format(value) { return formats[this.spec.format || 'number'](value); }
  // Over what it is drawn: always time, or what the reader has chosen.
  get over() { return this.spec.axis === 'time' ? 'time' : view.axis; }
  tick(x) { return this.over === 'time' ? formats.clock(x) : x >= 1e6 ? formats.number(x) : Math.round(x).toLocaleString('en-US'); }
  formatX(x) {
    if (this.over === 'time') return this.tick(x);
    return this.over === 'step' ? 'step ' + this.tick(x) : `${this.tick(x)} ${this.over}`;
  }
  // Which step stands there, and when it was made, of a line that says it.
  formatStep(line, i) {
    if (!line.steps || !line.run) return '';
    const step = line.steps[i], clock = clockOf(line.run, step);
    return [this.over === 'step' ? '' : 'step ' + step.toLocaleString('en-US'), clock].filter(text => text).join(' · ');
  }

  draw() {
    this.lines = this.spec.lines();
    this.drawnWidth = this.plot.clientWidth;
    this.drawLegend();
    if (!this.lines.some(line => line.mean.some(value => value !== null))) {
      this.svg = null;
      this.log.hidden = true;
      this.plot.replaceChildren(element('div', {className: 'empty', textContent: this.spec.empty || 'nothing recorded'}));
      return;
    }
    this.width = Math.max(120, this.plot.clientWidth);
    this.height = this.plot.clientHeight || 178;
    this.svg = drawing('svg', {viewBox: `0 0 ${this.width} ${this.height}`, tabindex: 0, role: 'img'});
    this.svg.setAttribute('aria-label', this.describe());
    this.prepare();
    this.drawAxes();
    for (const line of this.spec.stacked ? [...this.lines].reverse() : this.lines) this.drawLine(line);
    this.overlay = drawing('g', {}, this.svg);
    this.listen();
    this.plot.replaceChildren(this.svg);
    this.drawCursor();
  }

  describe() {
    const texts = this.lines.filter(line => line.last !== null).map(line => `${line.label} ${this.format(line.last)}`);
    return `${this.spec.title}, at the end: ${texts.join(', ')}`;
  }

  drawLegend() {
    for (const line of this.lines) {
      const real = line.mean.filter(value => value !== null);
      line.last = real.length ? real[real.length - 1] : null;
    }
    this.legend.replaceChildren(...this.lines.map(line => {
      const swatch = element('span', {className: line.dash ? 'swatch dash' : 'swatch'});
      if (line.dash) swatch.style.borderColor = line.color; else swatch.style.background = line.color;
      return element('li', {}, swatch, element('span', {textContent: line.label}),
          element('b', {textContent: line.last === null ? '' : this.format(line.last)}));
    }));
  }

  // Values as drawn, and the scales.
  prepare() {
    let below = null;
    for (const line of this.lines) {
      line.shown = this.spec.dotted ? line.mean : smoothed(line.mean, view.smoothing);
      if (!this.spec.stacked) continue;
      const under = below;
      line.base = line.shown.map((_, i) => under ? under[i] : 0);
      line.shown = line.shown.map((value, i) => (value || 0) + line.base[i]);
      below = line.shown;
    }
    let first = Infinity, last = -Infinity;
    for (const line of this.lines) {
      if (line.at.length) { first = Math.min(first, line.at[0]); last = Math.max(last, line.at[line.at.length - 1]); }
    }
    if (first === last) { first -= 1; last += 1; }
    this.whole = [first, last];
    const range = view.range[this.spec.axis];
    this.x = range ? [Math.max(range[0], first), Math.min(range[1], last)] : this.whole;
    if (!(this.x[1] > this.x[0])) this.x = this.whole;
    this.prepareY();
  }

  prepareY() {
    let low = Infinity, high = -Infinity, smallest = Infinity;
    const see = value => {
      if (value === null || value === undefined) return;
      low = Math.min(low, value); high = Math.max(high, value);
      if (value > 0) smallest = Math.min(smallest, value);
    };
    for (const line of this.lines) {
      line.at.forEach((x, i) => {
        if (x < this.x[0] || x > this.x[1]) return;
        see(line.shown[i]);
        if (line.low && !this.spec.stacked) { see(line.low[i]); see(line.high[i]); }
      });
    }
    if (low > high) [low, high] = [0, 1];
    if (this.spec.zero || this.spec.stacked) { low = Math.min(low, 0); high = Math.max(high, 0); }
    if (low === high) { const room = Math.abs(low) * 0.2 || 1; low -= this.spec.zero ? 0 : room / 2; high += room / 2; }
    this.log.hidden = this.spec.stacked || low < 0 || smallest === Infinity;
    this.usesLog = this.logarithmic && !this.log.hidden;
    if (this.usesLog) {
      this.y = [Math.log10(Math.max(smallest, high * 1e-9)), Math.log10(high)];
      if (this.y[1] - this.y[0] < 0.1) this.y[0] -= 0.5;
    } else {
      const room = (high - low) * 0.05;
      this.y = [this.spec.zero && low === 0 ? 0 : low - room, high + room];
    }
  }

  px(x) { return margin.left + (x - this.x[0]) / (this.x[1] - this.x[0]) * (this.width - margin.left - margin.right); }
  py(value) {
    const scaled = this.usesLog ? Math.log10(Math.max(value, 10 ** this.y[0])) : value;
    return this.height - margin.bottom - (scaled - this.y[0]) / (this.y[1] - this.y[0]) * (this.height - margin.top - margin.bottom);
  }

  drawAxes() {
    const bottom = this.height - margin.bottom, right = this.width - margin.right;
    for (const [from, to] of this.spec.alarms ? this.spec.alarms() : []) {
      const left = Math.max(margin.left, this.px(from)), end = Math.min(right, this.px(to === null ? this.whole[1] : to));
      if (end > left) drawing('rect', {class: 'alarm', x: left, y: margin.top, width: end - left, height: bottom - margin.top}, this.svg);
    }
    for (const tick of ticks(this.y[0], this.y[1], 4)) {
      const value = this.usesLog ? 10 ** tick : tick, y = this.py(value);
      drawing('line', {class: 'grid-line', x1: margin.left, x2: right, y1: y, y2: y}, this.svg);
      drawing('text', {x: margin.left - 7, y: y + 4, 'text-anchor': 'end'}, this.svg).textContent = this.format(value);
    }
    drawing('line', {class: 'axis', x1: margin.left, x2: right, y1: bottom, y2: bottom}, this.svg);
    for (const tick of ticks(this.x[0], this.x[1], Math.max(2, Math.floor(this.width / 95)))) {
      if (this.over !== 'time' && tick !== Math.round(tick)) continue;
      const x = this.px(tick), anchor = x > right - 18 ? 'end' : 'middle', text = this.tick(tick);
      drawing('text', {x, y: this.height - 6, 'text-anchor': anchor}, this.svg).textContent = text;
    }
  }

  // The path over points that can be seen, one beyond each edge; a new part after each gap. Clipped to the plot.
  path(line, values) {
    const parts = [];
    let open = false;
    line.at.forEach((x, i) => {
      const value = values[i];
      const hidden = (i + 1 < line.at.length && line.at[i + 1] < this.x[0]) || (i > 0 && line.at[i - 1] > this.x[1]);
      if (value === null || hidden) { open = false; return; }
      const y = this.py(value).toFixed(1), at = this.px(x).toFixed(1);
      parts.push(open ? (this.spec.steps ? `H${at}V${y}` : `L${at} ${y}`) : `M${at} ${y}`);
      open = true;
    });
    return parts.join('');
  }

  area(line, lower, upper) {
    const there = line.at.map((_, i) => i).filter(i => lower[i] !== null && upper[i] !== null && this.sees(line, i));
    if (!there.length) return '';
    const point = (i, values) => `${this.px(line.at[i]).toFixed(1)} ${this.py(values[i]).toFixed(1)}`;
    return 'M' + there.map(i => point(i, upper)).join('L') + 'L' + there.reverse().map(i => point(i, lower)).join('L') + 'Z';
  }
  sees(line, i) {
    return !((i + 1 < line.at.length && line.at[i + 1] < this.x[0]) || (i > 0 && line.at[i - 1] > this.x[1]));
  }

  drawLine(line) {
    // A drawing in the drawing cuts off what lies beyond the plot.
    const left = margin.left - 2, width = this.width - margin.left - margin.right + 6;
    const group = drawing('svg', {x: left, y: 0, width, height: this.height,
      viewBox: `${left} 0 ${width} ${this.height}`}, this.svg);
    const add = (d, style, kind) => {
      if (!d) return;
      Object.assign(drawing('path', {d, 'data-kind': kind}, group).style, style);
    };
    if (this.spec.stacked) {
      add(this.area(line, line.base, line.shown), {fill: line.color, fillOpacity: 0.72}, 'area');
      return;
    }
    const stroke = {fill: 'none', stroke: line.color, strokeLinejoin: 'round', strokeLinecap: 'round'};
    if (line.low) add(this.area(line, line.low, line.high), {fill: line.color, fillOpacity: 0.14}, 'spread');
    if (view.smoothing && !this.spec.dotted) add(this.path(line, line.mean), {...stroke, strokeWidth: 1, opacity: 0.3}, 'raw');
    add(this.path(line, line.shown), {...stroke, strokeWidth: 1.8, strokeDasharray: line.dash ? '5 4' : 'none'}, 'line');
    if (!this.spec.dotted || line.at.length > 120) return;
    line.at.forEach((x, i) => {
      if (line.shown[i] === null || x < this.x[0] || x > this.x[1]) return;
      drawing('circle', {cx: this.px(x), cy: this.py(line.shown[i]), r: 2.6}, group).style.fill = line.color;
    });
  }

  listen() {
    const xOf = event => {
      const box = this.svg.getBoundingClientRect();
      const inside = (event.clientX - box.left) / box.width * this.width;
      const share = (inside - margin.left) / (this.width - margin.left - margin.right);
      return this.x[0] + Math.min(1, Math.max(0, share)) * (this.x[1] - this.x[0]);
    };
    let from = null;
    this.svg.addEventListener('pointermove', event => this.point(xOf(event), event.clientX, event.clientY, from));
    this.svg.addEventListener('pointerleave', () => { from = null; Chart.clearCursor(); });
    this.svg.addEventListener('pointerdown', event => { if (event.pointerType === 'mouse') from = xOf(event); });
    this.svg.addEventListener('pointerup', event => {
      const to = xOf(event), begin = from;
      from = null;
      if (begin !== null && Math.abs(to - begin) > (this.x[1] - this.x[0]) * 0.02) {
        this.zoom([Math.min(begin, to), Math.max(begin, to)]);
      }
    });
    this.svg.addEventListener('dblclick', () => this.zoom(null));
    this.svg.addEventListener('keydown', event => this.onKey(event));
    this.svg.addEventListener('blur', () => Chart.clearCursor());
  }

  zoom(range) {
    view.range[this.spec.axis] = range;
    for (const chart of view.charts) if (chart.spec.axis === this.spec.axis) chart.draw();
  }

  onKey(event) {
    const all = this.longest().at.filter(x => x >= this.x[0] && x <= this.x[1]);
    if (!all.length) return;
    const now = view.cursor && view.cursor.axis === this.spec.axis ? nearest(all, view.cursor.x) : all.length - 1;
    const moves = {ArrowLeft: now - 1, ArrowRight: now + 1, PageUp: now - 20, PageDown: now + 20, Home: 0, End: all.length - 1};
    if (event.key in moves) {
      const x = all[Math.min(all.length - 1, Math.max(0, moves[event.key]))];
      const box = this.svg.getBoundingClientRect();
      this.point(x, box.left + this.px(x) / this.width * box.width, box.top + 20, null);
    } else if (event.key === '+' || event.key === '=' || event.key === '-') {
      const x = all[now], half = (this.x[1] - this.x[0]) * (event.key === '-' ? 1 : 0.25);
      this.zoom([x - half, x + half]);
    } else if (event.key === '0' || event.key === 'Escape') {
      Chart.clearCursor();
      this.zoom(null);
    } else {
      return;
    }
    event.preventDefault();
    this.svg.focus();
  }

  longest() { return this.lines.reduce((a, b) => (b.at.length > a.at.length ? b : a)); }

  point(x, clientX, clientY, from) {
    const longest = this.longest(), place = nearest(longest.at, x), at = longest.at[place];
    view.cursor = {axis: this.spec.axis, x: at, from, to: x, chart: this};
    for (const chart of view.charts) chart.drawCursor();
    const rows = this.lines.map(line => {
      const i = nearest(line.at, at), value = line.mean[i];
      if (value === undefined || value === null) return null;
      const swatch = element('span', {className: 'swatch'});
      swatch.style.background = line.color;
      swatch.style.display = 'inline-block';
      const spread = line.low && line.low[i] !== null && line.low[i] !== line.high[i]
        ? `${this.format(line.low[i])} to ${this.format(line.high[i])}` : '';
      return element('tr', {}, element('td', {}, swatch, ' ' + line.label),
          element('td', {className: 'number', textContent: this.format(value)}),
          element('td', {className: 'where', textContent: spread}));
    });
    tooltip().replaceChildren(element('div', {className: 'where', textContent: [this.formatX(at), this.formatStep(longest, place)].filter(text => text).join(' · ')}),
        element('table', {}, element('tbody', {}, ...rows)));
    tooltip().hidden = false;
    const width = tooltip().offsetWidth, height = tooltip().offsetHeight;
    const left = clientX + 16 + width > innerWidth ? clientX - 16 - width : clientX + 16;
    tooltip().style.transform = `translate(${Math.max(4, left)}px, ${Math.max(4, Math.min(innerHeight - height - 4, clientY + 12))}px)`;
  }

  drawCursor() {
    if (!this.svg) return;
    this.overlay.replaceChildren();
    const cursor = view.cursor;
    if (!cursor || cursor.axis !== this.spec.axis || cursor.x < this.x[0] || cursor.x > this.x[1]) return;
    const bottom = this.height - margin.bottom, x = this.px(cursor.x);
    if (cursor.chart === this && cursor.from !== null) {
      const left = this.px(Math.min(cursor.from, cursor.to)), right = this.px(Math.max(cursor.from, cursor.to));
      drawing('rect', {class: 'selection', x: left, y: margin.top, width: right - left, height: bottom - margin.top}, this.overlay);
    }
    drawing('line', {class: 'cursor', x1: x, x2: x, y1: margin.top, y2: bottom}, this.overlay);
    for (const line of this.lines) {
      const i = nearest(line.at, cursor.x);
      if (this.spec.stacked || line.shown[i] === undefined || line.shown[i] === null) continue;
      const dot = drawing('circle', {cx: this.px(line.at[i]), cy: this.py(line.shown[i]), r: 3.2}, this.overlay);
      dot.style.fill = line.color;
    }
  }

  static clearCursor() {
    view.cursor = null;
    tooltip().hidden = true;
    for (const chart of view.charts) chart.drawCursor();
  }
}
