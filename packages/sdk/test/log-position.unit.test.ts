import assert from 'node:assert/strict';
import { test } from 'node:test';
import { LogPosition } from '../src/log-position.ts';

const lines = (from: number, to: number): string =>
  Array.from({ length: to - from }, (_, index) => `line ${from + index}\n`).join('');

/** In pieces of 100 bytes. */
async function* pieces(text: string): AsyncGenerator<Buffer> {
  const bytes = Buffer.from(text);
  for (let at = 0; at < bytes.length; at += 100) yield bytes.subarray(at, at + 100);
}

async function positionAfter(text: string): Promise<LogPosition> {
  const position = new LogPosition();
  for await (const piece of pieces(text)) position.advance(piece);
  return position;
}

test('a log that has grown is continued at the last position', async () => {
  for (const count of [1, 5, 100, 2000]) {
    const position = await positionAfter(lines(0, count));
    assert.equal(await position.findIn(pieces(lines(0, count + 50))), lines(0, count).length);
  }
});

test('a log whose beginning was dropped is continued at the last position, each time', async () => {
  const position = await positionAfter(lines(0, 2000));
  const shorter = lines(1000, 2300);
  const printed = await position.findIn(pieces(shorter));
  assert.equal(shorter.slice(printed), lines(2000, 2300));
  for await (const piece of pieces(shorter.slice(printed))) position.advance(piece);
  assert.equal(await position.findIn(pieces(lines(1000, 2400))), shorter.length);
  const again = lines(1500, 2500);
  assert.equal(again.slice(await position.findIn(pieces(again))), lines(2300, 2500));
});

test('a log without any part that was printed is printed whole', async () => {
  const position = await positionAfter(lines(0, 2000));
  assert.equal(await position.findIn(pieces(lines(3000, 5000))), 0);
  assert.equal(await position.findIn(pieces('')), 0);
});
