import assert from 'node:assert/strict';
import { mkdtemp, readdir, readFile, rm, stat } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, describe, test } from 'node:test';
import { RotatingFile } from '../src/log/rotating-file.ts';
import { humanLine } from '../src/log/terminal.ts';

async function folder(): Promise<string> {
  const made = await mkdtemp(path.join(tmpdir(), 'releap-log-'));
  after(() => rm(made, { recursive: true, force: true }));
  return made;
}

describe('a log file', () => {
  test('keeps the newest lines within its bound, in order', async () => {
    const dir = path.join(await folder(), 'log');
    const file = new RotatingFile(path.join(dir, 'part.log'), 10_000);
    for (let i = 0; i < 1000; i++) {
      file.write(`line ${String(i).padStart(40, '0')}`);
      if (i % 20 === 0) await new Promise((done) => setImmediate(done));
    }
    await file.close();
    assert.deepEqual((await readdir(dir)).sort(), ['part.log', 'part.log.1']);
    const text =
      (await readFile(path.join(dir, 'part.log.1'), 'utf8')) +
      (await readFile(path.join(dir, 'part.log'), 'utf8'));
    const numbers = text
      .trimEnd()
      .split('\n')
      .map((line) => Number(line.slice(5)));
    assert.equal(numbers.at(-1), 999);
    assert.ok(numbers.every((number, i) => i === 0 || number === (numbers[i - 1] ?? 0) + 1));
    assert.ok(numbers.length < 1000, 'the oldest lines are gone');
    assert.equal((await stat(path.join(dir, 'part.log'))).mode & 0o777, 0o600);
  });

  test('continues after it could not be written', async () => {
    const dir = path.join(await folder(), 'log');
    const file = new RotatingFile(path.join(dir, 'a-folder'), 1000);
    await new RotatingFile(path.join(dir, 'a-folder', 'x'), 1000).close();
    file.write('one');
    await file.close();
    await rm(dir, { recursive: true });
    file.write('two');
    await file.close();
    assert.equal(await readFile(path.join(dir, 'a-folder'), 'utf8'), 'two\n');
  });
});

describe('a line for people', () => {
  test('shows the part, the message, its cause and its facts', () => {
    const json = JSON.stringify({
      level: 50,
      time: 0,
      msg: 'no',
      err: { message: 'because', stack: 'x' },
      vm: 'a',
      n: 1,
    });
    assert.match(
      humanLine(json, 'runner', false) ?? '',
      /^\d\d:\d\d:\d\d runner\s+no: because \(vm=a n=1\)$/,
    );
  });

  test('lets no control character through to the terminal', () => {
    const json = JSON.stringify({ level: 30, time: 0, msg: 'a\u001b[2Jb\nc\u009bd', image: '\u0007x' });
    // eslint-disable-next-line no-control-regex
    assert.doesNotMatch(humanLine(json, 'runner', false) ?? '', /[\u0000-\u001f\u007f-\u009f]/);
  });

  test('is not made of text that is no log line', () => {
    for (const text of ['plain', '{"a":1}', 'null', '12', ''])
      assert.equal(humanLine(text, 'x', false), undefined);
  });
});
