/** A reporter for `node --test`: one short paragraph for each test that failed. */
import path from 'node:path';

const LINES_MAX = 12;
const LINE_MAX = 300;

/** The message of an error and of what caused it, shortened. */
function reason(error) {
  const messages = [];
  for (let one = error; one instanceof Error && messages.length < 4; one = one.cause) {
    // What the runner wraps around the error of a test says nothing of its own.
    if (one.code !== 'ERR_TEST_FAILURE' || !(one.cause instanceof Error)) messages.push(one.message);
  }
  const lines = messages.join('\ncaused by: ').split('\n');
  const shown = lines.length > LINES_MAX ? [...lines.slice(0, LINES_MAX), '…'] : lines;
  return shown.map((line) => `    ${line.slice(0, LINE_MAX)}`).join('\n');
}

export default async function* failures(source) {
  for await (const { type, data } of source) {
    if (type !== 'test:fail') continue;
    const { error } = data.details;
    // It failed because of what is in it, and that has its own paragraph.
    if (error.failureType === 'subtestsFailed') continue;
    const file = data.file === undefined ? '' : `${path.relative(process.cwd(), data.file)}:${data.line} `;
    yield `\nFAILED ${file}${data.name}\n${reason(error)}\n`;
  }
}
