/** Writes the last part of docs/lifecycle.md. Run it after a table of the runner has changed; a test says when that was forgotten. */
import { readFileSync, writeFileSync } from 'node:fs';
import { HOST_PART, renderHostLifecycle } from './render-lifecycle.ts';

const page = new URL('../../../docs/lifecycle.md', import.meta.url);
const [before = ''] = readFileSync(page, 'utf8').split(`${HOST_PART}\n`);
writeFileSync(page, `${before.trimEnd()}\n\n${renderHostLifecycle()}`);
