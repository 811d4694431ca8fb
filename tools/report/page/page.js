'use strict';
// The page of one run or of several: what is read from #data, and, while a run is watched, from what is polled.

const data = JSON.parse(document.getElementById('data').textContent);
const byId = id => document.getElementById(id);
const palette = Array.from({length: 8}, (_, i) => `var(--c${i})`);
const vocabulary = new Map(data.vocabulary.map(figure => [figure.name, figure]));
const phases = ['stage', 'prepare', 'transfer', 'verify', 'install'];
data.runs.forEach((run, i) => { run.color = palette[i % palette.length]; run.visible = true; });
const several = data.runs.length > 1;
const visibleRuns = () => data.runs.filter(run => run.visible);
const figuresOf = series => (series && series.figures) || {};

function last(run, figure, series = run.steps) {
  const values = (figuresOf(series)[figure] || {mean: []}).mean;
  for (let i = values.length - 1; i >= 0; --i) if (values[i] !== null) return values[i];
  return null;
}
// The mean over the newest tenth, at least 20 points: one step is noise.
function recent(run, figure) {
  const values = (figuresOf(run.steps)[figure] || {mean: []}).mean.filter(value => value !== null);
  const tail = values.slice(-Math.max(20, Math.floor(values.length / 10)));
  return tail.length ? tail.reduce((sum, value) => sum + value, 0) / tail.length : null;
}
function lastEvaluation(run) {
  const scored = (run.evaluations || []).filter(one => one.reward_mean !== undefined);
  return scored.length ? scored[scored.length - 1] : null;
}
// What is called the best can be exported: a checkpoint, not an evaluation.
function bestOf(run) {
  const {best, best_reward} = run.checkpoints;
  return best ? `best checkpoint ${best}: ${formats.number(best_reward)}` : 'no checkpoint judged yet';
}
// From the newest steps, for as long as the run goes on.
function timeLeft(run) {
  const seconds = recent(run, 'step_seconds');
  if (run.status !== 'running' || seconds === null || !run.steps_total) return '';
  const left = Math.max(0, run.steps_total - run.last_step) * seconds;
  return ` · about ${formats.clock(1000 * left)} left`;
}
const shown = (value, format) => (value === null || value === undefined ? '-' : formats[format](value));

// Where a step stands on the axis that is chosen: how many samples or tokens, or milliseconds, the run had taken by then.
const axes = {samples: ['samples_so_far', 1], tokens: ['tokens_so_far', 1], time: ['seconds_so_far', 1000]};
function placesOf(run, steps) {
  if (view.axis === 'step') return steps;
  const [figure, factor] = axes[view.axis], values = figuresOf(run.steps)[figure] || {mean: []}, soFar = values.high || values.mean;
  const known = run.steps.at.map((step, i) => [step, soFar[i]]).filter(([, value]) => value !== null && value !== undefined);
  if (!known.length || known[known.length - 1][1] === 0) return [];
  let i = 0;
  return steps.map(step => {
    while (i < known.length - 1 && known[i][0] < step) ++i;
    const [right, value] = known[i], [left, before] = i > 0 ? known[i - 1] : [0, view.axis === 'time' ? value : 0];
    const share = right > left ? Math.min(1, Math.max(0, (step - left) / (right - left))) : 1;
    return factor * (before + (value - before) * share);
  });
}
// The time of day of a step, where lines say it.
function clockOf(run, step) {
  const values = figuresOf(run.steps).seconds_so_far;
  if (!run.first_unix_seconds || !values || !run.steps.at.length) return '';
  const seconds = (values.high || values.mean)[nearest(run.steps.at, step)];
  return seconds === null || seconds === undefined ? '' : new Date(1000 * (run.first_unix_seconds + seconds)).toLocaleString();
}

// Lines over one of a run's series. Several runs: a colour a run, a dash for further figures; one run: a colour a figure.
function lines(series, wanted) {
  const made = [];
  for (const run of visibleRuns()) {
    wanted.forEach(([figure, label], i) => {
      const source = run[series] || {at: []}, values = figuresOf(source)[figure];
      if (!values && several) return;
      const mean = values ? values.mean : [], at = placesOf(run, source.at || []);
      made.push({label: several ? (wanted.length > 1 ? `${run.name}: ${label}` : run.name) : label,
        color: several ? run.color : palette[i % palette.length], dash: several && i > 0, run, steps: source.at || [], at, mean: at.length ? mean : [],
        low: values && values.low, high: values && values.high});
    });
  }
  return made;
}

// Over evaluations: `wanted` is [get(evaluation), label] a line.
function evaluationLines(wanted) {
  const made = [];
  for (const run of visibleRuns()) {
    wanted.forEach(([get, label], i) => {
      const points = (run.evaluations || []).filter(one => get(one) !== undefined);
      if (!points.length) return;
      const steps = points.map(one => one.step), at = placesOf(run, steps);
      made.push({label: several ? `${run.name}: ${label}` : label, color: several ? run.color : palette[i % palette.length],
        dash: several && i > 0, run, steps, at, mean: at.length ? points.map(get) : []});
    });
  }
  return made;
}
const evaluationFigures = kind => [...new Set(data.runs.flatMap(run => (run.evaluations || []).flatMap(one => Object.keys(one.figures || {}))))]
    .filter(name => name.startsWith(kind + ':')).sort();
function evaluationChart(title, help, kind, more = {}) {
  const names = evaluationFigures(kind);
  if (names.length < (kind === 'part' ? 2 : 1)) return [];  // one part is the reward
  const wanted = names.map(name => [one => (one.figures || {})[name], name.slice(kind.length + 1)]);
  return [{title, axis: 'step', help, lines: () => evaluationLines(wanted), dotted: true, alarms: alarmsOf, ...more}];
}

// A stack cannot be laid over another: with several runs it is their sums.
function stackLines(series, wanted) {
  if (!several) return lines(series, wanted);
  return visibleRuns().map(run => {
    const source = run[series] || {at: []}, figures = figuresOf(source);
    return {label: run.name, color: run.color, run, steps: source.at || [], at: placesOf(run, source.at || []),
      mean: (source.at || []).map((_, i) => wanted.reduce((sum, [figure]) => sum + ((figures[figure] || {mean: []}).mean[i] || 0), 0))};
  });
}

function rollouterLines() {
  const made = [];
  for (const run of visibleRuns()) {
    Object.keys(figuresOf(run.versions)).sort().forEach((who, i) => {
      // A value holds until the next one.
      let held = null;
      const mean = figuresOf(run.versions)[who].mean.map(value => (held = value === null ? held : value));
      made.push({label: several ? `${run.name}: ${who}` : who, color: several ? run.color : palette[i % palette.length],
        dash: several && i > 0, at: run.versions.at, mean});
    });
  }
  return made;
}

const alarmsOf = () => (several ? [] : data.runs[0].alarms.map(alarm => {
  const [from, to] = placesOf(data.runs[0], [alarm.from, alarm.to === null ? alarm.from : alarm.to]);
  return [from, alarm.to === null ? null : to];
}).filter(([from]) => from !== undefined));
const of = (figure, label) => [figure, label || figure.replaceAll('_', ' ')];
const helpOf = name => {
  const figure = vocabulary.get(name);
  return figure ? figure.help + (figure.unit ? ` (${figure.unit})` : '') : '';
};
function over(title, wanted, more = {}) {
  const list = typeof wanted === 'string' ? [of(wanted)] : wanted;
  return {title, axis: 'step', help: helpOf(list[0][0]), lines: () => lines('steps', list), alarms: alarmsOf, ...more};
}
// A figure that only some steps have: a line over those.
function sparseLines(figure, label) {
  return lines('steps', [[figure, label]]).map(line => {
    const there = line.mean.map((value, i) => [value, i]).filter(([value]) => value !== null).map(([, i]) => i);
    const pick = values => values && there.map(i => values[i]);
    return {...line, steps: pick(line.steps), at: pick(line.at), mean: pick(line.mean), low: pick(line.low), high: pick(line.high)};
  });
}
const hasFigure = figure => data.runs.some(run => figuresOf(run.steps)[figure]);
const partNames = () => [...new Set(data.runs.flatMap(run => Object.keys(figuresOf(run.steps)).filter(name => name.startsWith('part:'))))].sort();

const sections = [
  ['Reward', () => [
    over('Reward', [of('reward_mean', 'mean reward')]),
    {title: 'Evaluation', axis: 'step', help: 'Greedy answers to the evaluation prompts', dotted: true, alarms: alarmsOf,
      empty: 'no evaluation yet', lines: () => evaluationLines([[one => one.reward_mean, 'mean reward'], [one => one.exact, 'exact']])},
    ...evaluationChart('Evaluation by file', 'Mean reward of the prompts of each data file', 'file'),
    ...evaluationChart('Evaluation by data_source', 'Mean reward of the prompts of each data_source', 'source'),
    ...evaluationChart('Parts of the evaluation\'s reward', 'Mean of each part over the answers', 'part'),
    over('Range of rewards', [of('reward_max', 'highest'), of('reward_min', 'lowest')], {help: 'Highest and lowest reward of the batch'}),
    ...(partNames().length > 1 ? [over('Parts of the reward', partNames().map(name => of(name, name.slice(5))), {help: 'Mean of each part over the batch'})] : []),
    over('Groups without signal', [of('zero_variance_ratio', 'share')], {format: 'share', zero: true}),
  ]],
  ['Policy', () => [
    over('Loss', 'loss'), over('Learning rate', 'learning_rate', {zero: true}), over('Entropy', 'entropy', {zero: true}), over('Gradient norm', 'gradient_norm', {zero: true}),
    ...(hasFigure('held_out_loss') ? [{title: 'Held-out loss', axis: 'step', dotted: true, alarms: alarmsOf,
      help: 'Mean cross-entropy per token of answers that supervised steps do not train (nats)', lines: () => sparseLines('held_out_loss', 'held-out loss')}] : []),
    over('Probability of the likeliest token', 'top_probability', {format: 'share'}), over('Update norm', 'update_norm', {zero: true}),
    over('Clipped and rejected tokens', [of('clip_ratio', 'clipped'), of('rejected_ratio', 'rejected')], {format: 'share', zero: true}),
  ]],
  ['Data', () => [
    over('Staleness', [of('staleness_mean', 'mean'), of('staleness_max', 'oldest')], {zero: true, format: 'count'}),
    over('KL to the behaviour policy', [of('kl', 'KL')]),
    over('Effective share of samples', [of('effective_sample_ratio', 'share')], {format: 'share'}),
    over('Length of answers', [of('response_tokens_mean', 'mean tokens'), of('response_tokens_max', 'longest'), of('response_tokens_min', 'shortest')],
        {zero: true, format: 'count'}),
    ...evaluationChart('Length of the evaluation\'s answers', 'Tokens of greedy answers', 'tokens', {zero: true, format: 'count'}),
    over('Cut off at the longest answer', [of('truncated_samples', 'samples'), of('masked_samples', 'not trained on')],
        {zero: true, format: 'count', help: helpOf('truncated_samples')}),
  ]],
  ['Speed', () => [
    over('Throughput', [of('tokens_per_second', 'trained tokens / s')], {zero: true, help: 'Trained tokens per second of a step, waiting included'}),
    over('Idle', [of('idle_ratio', 'trainer'), of('rollouters_idle_ratio', 'rollouters')], {format: 'share', zero: true,
      help: 'Share of the time in which the trainer had no batch, and rollouters no prompt'}),
    {title: 'Where a step\'s time goes', axis: 'step', help: 'From the end of the step before to the end of this one', format: 'seconds',
      stacked: !several, zero: true, alarms: alarmsOf,
      lines: () => stackLines('steps', ['wait_seconds', 'forward_backward_seconds', 'optimizer_seconds', 'proximal_seconds',
        'reference_seconds', 'stage_seconds'].map(name => of(name, name.replace('_seconds', '').replaceAll('_', ' '))))},
  ]],
  ['Weight sync', () => [
    {title: 'Phases of a weight sync', axis: 'step', help: 'Mean over receivers, by the version that was sent', format: 'seconds',
      stacked: !several, zero: true, empty: 'no weight sync yet', lines: () => stackLines('syncs', phases.map(name => of(name)))},
    {title: 'From publication to use', axis: 'step', help: 'What a version took to serve, and what its install cost the decode loop',
      format: 'seconds', zero: true, empty: 'no weight sync yet', lines: () => lines('syncs', [of('total', 'whole sync'), of('pause', 'pause')])},
    {title: 'Versions by rollouter', axis: 'time', help: 'The version that each serves, over time', format: 'count', steps: true,
      dotted: false, empty: 'no version published yet', lines: rollouterLines},
  ]],
];

const charts = [];
let drawnParts = '';
function chart(spec) {
  const made = new Chart(spec);
  charts.push(made);
  return made.card;
}
// Again when a run that goes on has told which parts its reward has.
function buildCharts() {
  const parts = [partNames(), ...['file', 'source', 'part', 'tokens'].map(evaluationFigures)].join('|');
  if (charts.length && drawnParts === parts) return;
  drawnParts = parts;
  charts.length = 0;
  view.charts.clear();
  const root = byId('charts');
  root.replaceChildren();
  for (const [title, specs] of sections) {
    root.append(element('section', {className: 'group', ariaLabel: title}, element('h2', {textContent: title}),
        element('div', {className: 'grid'}, ...specs().map(chart))));
  }
  const grid = element('div', {className: 'grid'});
  const all = element('details', {className: 'group'}, element('summary', {textContent: 'Every figure of a step'}), grid);
  all.addEventListener('toggle', () => {
    if (!all.open || grid.childElementCount) return;
    for (const figure of data.vocabulary) {
      const more = {format: figure.unit === 'seconds' ? 'seconds' : figure.name.endsWith('_ratio') ? 'share' : 'number'};
      grid.append(chart(over(figure.name, [of(figure.name)], more)));
    }
    for (const made of charts) made.draw();
  });
  root.append(all);
}

function statusPill(run) {
  const kind = {completed: 'good', failed: 'bad', interrupted: 'warn', stopped: 'warn'}[run.status] || 'plain';
  return element('span', {className: 'pill ' + kind, textContent: run.status || 'unknown'});
}

function renderHeading() {
  const title = several ? `${data.runs.length} runs` : data.runs[0].name || 'run';
  byId('title').textContent = title;
  document.title = `${title} - Syncopate`;
  if (!several) {
    const run = data.runs[0];
    const steps = `step ${run.last_step.toLocaleString('en-US')}${run.steps_total ? ' of ' + run.steps_total.toLocaleString('en-US') : ''}`;
    byId('subtitle').replaceChildren(statusPill(run), ` ${steps}${timeLeft(run)} · ${run.folder}`);
  } else {
    byId('subtitle').textContent = 'Side by side; a button hides its run.';
    byId('runs').replaceChildren(...data.runs.map(run => {
      const swatch = element('span', {className: 'swatch'});
      swatch.style.background = run.color;
      const button = element('button', {className: 'run', type: 'button', title: run.folder}, swatch,
          element('span', {textContent: run.name}), statusPill(run));
      button.setAttribute('aria-pressed', String(run.visible));
      button.addEventListener('click', () => { run.visible = !run.visible; render(); });
      return button;
    }));
  }
  byId('footer').textContent = data.live ? 'Live: it follows the run for as long as this page is open.' : `Made ${data.made} by syncopate report.`;
}

function renderNotices() {
  const notices = [];
  for (const run of data.runs) {
    const name = several ? run.name + ': ' : '';
    if (run.status === 'failed') notices.push(['bad', `${name}the run failed${run.reason ? ': ' + run.reason : ''}`]);
    if (run.log.length) notices.push(['bad log', run.log.join('\n')]);
    const {failed, error} = run.checkpoints;
    if (failed) notices.push(['bad', `${name}${failed} checkpoints could not be saved${error ? ', the newest: ' + error : ''}`]);
    for (const alarm of run.alarms.filter(one => one.to === null)) notices.push(['', `${name}${alarm.words}, since step ${alarm.from}`]);
    for (const warning of run.warnings) notices.push(['', name + warning]);
  }
  if (data.lost) notices.push(['bad', 'The run does not answer any more: this is what it was like when it did.']);
  byId('notices').replaceChildren(...notices.map(([kind, text]) => element('p', {className: 'notice ' + kind, textContent: text})));
}

function glanceOf(run) {
  const scores = lastEvaluation(run), syncs = (run.summary.syncs || {}).total_ms, bound = (run.summary.staleness || {}).bound;
  const stale = recent(run, 'staleness_mean');
  return [
    ['Reward', shown(recent(run, 'reward_mean'), 'number'), 'mean of the newest steps'],
    ['Evaluation', shown(scores && scores.reward_mean, 'number'), scores ? bestOf(run) : 'none yet'],
    ['Entropy', shown(recent(run, 'entropy'), 'number'), 'nats a token'],
    ['Staleness', shown(stale, 'number'), bound === undefined ? 'steps' : `steps; bound ${bound}`],
    ['Throughput', shown(recent(run, 'tokens_per_second'), 'number'), 'trained tokens / s'],
    ['Trainer idle', shown(recent(run, 'idle_ratio'), 'share'), 'of a step'],
    ['Answers', shown(recent(run, 'response_tokens_mean'), 'number'), 'mean tokens'],
    ['Weight sync', syncs ? shown(syncs.p50 / 1000, 'seconds') : shown(last(run, 'total', run.syncs), 'seconds'), syncs ? 'median' : 'the last one'],
  ];
}

function renderGlance() {
  if (!several) {
    byId('glance').replaceChildren(element('dl', {className: 'tiles'}, ...glanceOf(data.runs[0]).map(([name, value, more]) =>
      element('div', {className: 'tile'}, element('dt', {textContent: name}), element('dd', {className: 'value', textContent: value}),
          element('dd', {className: 'more', textContent: more})))));
    return;
  }
  const rows = data.runs.map(run => [run, glanceOf(run)]);
  byId('glance').replaceChildren(element('div', {className: 'scroll block', tabIndex: 0}, element('table', {className: 'facts'},
      element('thead', {}, element('tr', {}, element('th', {textContent: 'Run'}), element('th', {textContent: 'Steps'}),
          ...rows[0][1].map(([name]) => element('th', {textContent: name})))),
      element('tbody', {}, ...rows.map(([run, values]) => element('tr', {}, element('th', {scope: 'row', textContent: run.name}),
          element('td', {textContent: formats.number(run.last_step)}),
          ...values.map(([, value, more]) => element('td', {textContent: value, title: more}))))))));
}

const picked = {run: 0, sample: -1, onlyDifferences: several, filter: ''};
function renderSamples() {
  const block = byId('samples'), run = data.runs[picked.run], all = run.samples || [];
  const shows = `${picked.run} ${run.revision}`;
  if (block.dataset.shows === shows) return;  // what somebody reads stays where it is
  block.dataset.shows = shows;
  block.hidden = !data.runs.some(one => (one.samples || []).length);
  if (block.hidden) return;
  const place = picked.sample < 0 || picked.sample >= all.length ? all.length - 1 : picked.sample;
  const picker = element('div', {className: 'picker'});
  if (several) {
    const choice = element('select', {ariaLabel: 'Run'}, ...data.runs.map((one, i) => element('option', {value: i, textContent: one.name})));
    choice.value = picked.run;
    choice.addEventListener('change', () => { picked.run = Number(choice.value); picked.sample = -1; renderSamples(); });
    picker.append(choice);
  }
  const slider = element('input', {type: 'range', min: 0, max: Math.max(0, all.length - 1), ariaLabel: 'Evaluation'});
  slider.value = place;
  const at = element('output', {textContent: all.length ? `step ${all[place].step}` : 'none'});
  picker.append(slider, at);
  const answers = element('div', {className: 'answers'});
  const fill = i => {
    at.textContent = all.length ? `step ${all[i].step}` : 'none';
    answers.replaceChildren(...(all.length ? all[i].answers.map(answerCard) : []));
  };
  slider.addEventListener('input', () => { picked.sample = Number(slider.value) === all.length - 1 ? -1 : Number(slider.value); fill(Number(slider.value)); });
  fill(place);
  block.replaceChildren(element('div', {className: 'block-head'}, element('h2', {textContent: 'Sample answers'}), picker), answers);
}

function answerCard(sample) {
  const entry = (name, text, note) => [element('dt', {}, element('span', {textContent: name}), note || null), element('dd', {textContent: text, tabIndex: text.length > 600 ? 0 : -1})];
  const reward = sample.reward === undefined ? null : element('span', {textContent: 'reward ' + formats.number(sample.reward)});
  return element('dl', {className: 'answer'}, ...entry('Prompt', sample.prompt), ...entry('Answer', sample.answer, reward),
      ...(sample.expected === undefined ? [] : entry('Expected', sample.expected)));
}

// The samples that the trainer has written, newest first. The server looks for them in the run directory, a page at a
// time; text of answers becomes text here, never markup.
const sampleFields = [['q', 'search', 'text, reward part, outcome'], ['step_from', 'number', 'step from'], ['step_to', 'number', 'step to'],
  ['reward_from', 'number', 'reward from'], ['reward_to', 'number', 'reward to']];
const sampleKinds = ['', 'train', 'supervised', 'eval', 'drop'];
const recorded = {asked: 0, next: '', available: false};
function buildRecorded() {
  const block = byId('recorded');
  block.hidden = !data.live;
  if (!data.live) return;
  const inputs = sampleFields.map(([name, type, label]) => element('input', {type, name, placeholder: label, ariaLabel: label, ...(type === 'number' ? {step: 'any'} : {})}));
  const kind = element('select', {name: 'kind', ariaLabel: 'Kind'}, ...sampleKinds.map(one => element('option', {value: one, textContent: one || 'all kinds'})));
  const form = element('form', {className: 'picker', id: 'recorded-form'}, ...inputs, kind, element('button', {type: 'submit', textContent: 'Search'}));
  form.addEventListener('submit', event => { event.preventDefault(); searchSamples(false); });
  const more = element('button', {type: 'button', id: 'recorded-more', textContent: 'Older samples', hidden: true});
  more.addEventListener('click', () => searchSamples(true));
  block.replaceChildren(element('div', {className: 'block-head'}, element('h2', {textContent: 'Samples'}), form),
      element('p', {id: 'recorded-state', className: 'muted', role: 'status'}), element('div', {id: 'recorded-list', className: 'answers'}), more);
  searchSamples(false);
}
async function searchSamples(goOn) {
  const fields = new URLSearchParams();
  for (const input of byId('recorded-form').elements) if (input.name && input.value !== '') fields.set(input.name, input.value);
  if (goOn) fields.set('from', recorded.next);
  const asked = ++recorded.asked, state = byId('recorded-state');
  state.textContent = 'Looking ...';
  let found;
  try {
    const answer = await fetch(`samples.json?${fields}`, {cache: 'no-store'});
    found = await answer.json();
    if (!answer.ok) throw new Error(found.error);
  } catch (error) {
    if (asked === recorded.asked) state.textContent = `The samples cannot be searched: ${error.message}`;
    return;
  }
  if (asked !== recorded.asked) return;  // a newer search is under way
  recorded.next = found.next;
  recorded.available = found.available;
  const list = byId('recorded-list'), cards = found.samples.map(recordedCard);
  if (goOn) list.append(...cards); else list.replaceChildren(...cards);
  const count = `${list.childElementCount} samples, newest first`;
  state.textContent = !found.available ? 'The trainer has written no samples yet.' : found.complete ? count :
    `${count}; the search stopped for time: go on with older samples.`;
  byId('recorded-more').hidden = !found.next;
}
function recordedCard(sample) {
  const number = value => (typeof value === 'number' ? formats.number(value) : '-');
  const where = [`step ${sample.step}`, sample.kind, sample.set || sample.data_source, sample.environment, `group ${sample.group} #${sample.sample}`, sample.rollouter];
  const notes = [`reward ${number(sample.reward)}`, ...Object.entries(sample.reward_parts || {}).map(([name, value]) => `${name} ${number(value)}`),
    ...(sample.advantage === undefined ? [] : [`advantage ${number(sample.advantage)}`]), sample.outcome, sample.finish,
    `${sample.answer_tokens} tokens`, ...(sample.versions || []).map(one => `${one.version} [${one.begin}, ${one.end})`)];
  const texts = Array.isArray(sample.turns) ? sample.turns.map(turn => [turn.role, turn.text, turn.reward === undefined ? '' :
    `reward ${number(turn.reward)}, ${number(turn.seconds)} s`]) : [['Answer', sample.answer, '']];
  const entry = (name, text, note = '') => [element('dt', {}, element('span', {textContent: name}), element('span', {textContent: note})),
    element('dd', {textContent: text, tabIndex: String(text).length > 600 ? 0 : -1})];
  return element('dl', {className: 'answer'}, ...entry(where.filter(Boolean).join(' · '), notes.filter(Boolean).join(' · ')), ...entry('Prompt', sample.prompt),
      ...texts.flatMap(([name, text, note]) => entry(name, text, note)), ...(sample.expected === undefined ? [] : entry('Expected', sample.expected)),
      ...(sample.extracted === undefined ? [] : entry('Extracted', sample.extracted)));
}

function factsTable(heads, rows) {
  return element('div', {className: 'scroll', tabIndex: 0}, element('table', {className: 'facts'},
      element('thead', {}, element('tr', {}, ...heads.map(text => element('th', {textContent: text})))),
      element('tbody', {}, ...rows.map(([name, values, differs]) => element('tr', {className: differs ? 'differs' : ''},
          element('th', {scope: 'row', textContent: name}), ...values.map(text => element('td', {textContent: text})))))));
}

function renderConfiguration() {
  const maps = data.runs.map(run => new Map(run.config || []));
  const keys = [...new Set(maps.flatMap(map => [...map.keys()]))];
  const rows = keys.map(key => {
    const values = maps.map(map => (map.has(key) ? map.get(key) : 'not set'));
    return [key, values, several && values.some(value => value !== values[0])];
  }).filter(([key, values, differs]) => (!picked.onlyDifferences || differs) &&
      (key + ' ' + values.join(' ')).toLowerCase().includes(picked.filter.toLowerCase()));
  const table = factsTable(['Key', ...(several ? data.runs.map(run => run.name) : ['Value'])], rows);
  const block = byId('configuration');
  const old = block.querySelector('.scroll');
  if (old) { old.replaceWith(table); return; }
  const search = element('input', {type: 'search', placeholder: 'filter', ariaLabel: 'Filter keys and values'});
  search.addEventListener('input', () => { picked.filter = search.value; renderConfiguration(); });
  const picker = element('div', {className: 'picker'}, search);
  if (several) {
    const box = element('input', {type: 'checkbox', checked: picked.onlyDifferences});
    box.addEventListener('change', () => { picked.onlyDifferences = box.checked; renderConfiguration(); });
    picker.append(element('label', {}, box, ' differences only'));
  }
  block.replaceChildren(element('details', {open: several}, element('summary', {textContent: 'Configuration'}),
      element('div', {className: 'block-head'}, picker), table));
}

function flat(value, path, rows) {
  if (value !== null && typeof value === 'object') {
    for (const [key, inner] of Object.entries(value)) flat(inner, path ? `${path}.${key}` : key, rows);
  } else {
    rows.set(path, typeof value === 'number' ? formats.number(value) : String(value));
  }
  return rows;
}
function renderStatus() {
  const maps = data.runs.map(run => flat(run.summary, '', new Map()));
  const keys = [...new Set(maps.flatMap(map => [...map.keys()]))];
  byId('status').hidden = !keys.length;
  const open = byId('status').querySelector('details[open]') !== null;
  byId('status').replaceChildren(element('details', {open}, element('summary', {textContent: 'Summary'}),
      factsTable(['Figure', ...(several ? data.runs.map(run => run.name) : ['Value'])],
          keys.map(key => [key, maps.map(map => map.get(key) || '-'), false]))));
}

function render() {
  for (const step of [renderHeading, renderNotices, renderGlance, renderSamples, renderConfiguration, renderStatus]) step();
  for (const made of charts) made.draw();
}

function setTheme(theme) {
  if (theme === 'auto') delete document.documentElement.dataset.theme; else document.documentElement.dataset.theme = theme;
}
function listen() {
  const slider = byId('smoothing'), theme = byId('theme');
  slider.addEventListener('input', () => {
    view.smoothing = Number(slider.value);
    byId('smoothing-value').textContent = view.smoothing ? view.smoothing.toFixed(2) : 'off';
    for (const made of charts) made.draw();
  });
  theme.addEventListener('change', () => setTheme(theme.value));
  byId('axis').addEventListener('change', () => {
    view.axis = byId('axis').value;
    view.range = {};
    Chart.clearCursor();
    for (const made of charts) made.draw();
  });
  byId('controls').addEventListener('submit', event => event.preventDefault());
  addEventListener('beforeprint', () => { for (const made of charts) made.draw(); });
}

// Puts what is new of a series behind what is there.
function extend(old, fresh) {
  if (fresh.from === 0) return fresh;
  old.at = old.at.slice(0, fresh.from).concat(fresh.at);
  for (const name of new Set([...Object.keys(old.figures), ...Object.keys(fresh.figures)])) {
    const before = old.figures[name] || {mean: []}, after = fresh.figures[name] || {mean: fresh.at.map(() => null)};
    const head = list => Array.from({length: fresh.from}, (_, i) => (list && list[i] !== undefined ? list[i] : null));
    const joined = {mean: head(before.mean).concat(after.mean)};
    for (const edge of before.low || after.low ? ['low', 'high'] : []) {
      joined[edge] = head(before[edge] || before.mean).concat(after[edge] || after.mean);
    }
    old.figures[name] = joined;
  }
  old.from = 0;
  return old;
}
async function poll() {
  const run = data.runs[0];
  const have = ['steps', 'syncs', 'versions'].map(name => `${name}=${run[name].at.length}&${name}_span=${run[name].span}`);
  try {
    const answer = await fetch(`new.json?${have.join('&')}&revision=${run.revision}`, {cache: 'no-store'});
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    const fresh = await answer.json();
    for (const name of ['steps', 'syncs', 'versions']) fresh[name] = extend(run[name], fresh[name]);
    Object.assign(run, fresh);
    data.lost = false;
    buildCharts();
    if (!recorded.available) searchSamples(false);  // until there are some; then the reader asks
  } catch (error) {
    data.lost = true;
  }
  render();
  // The server of a run that is over goes away: what was told last stays.
  if (!['running', 'stopping'].includes(run.status)) return;
  setTimeout(poll, document.hidden ? 5000 : 1000);
}

buildCharts();
buildRecorded();
listen();
render();
if (data.live) setTimeout(poll, 1000);
document.documentElement.dataset.ready = 'true';
