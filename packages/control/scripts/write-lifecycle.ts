/** Writes docs/lifecycle.md, but for its last part. Run it after the transition table has changed; a test says when that was forgotten. */
import { readFileSync, writeFileSync } from 'node:fs';
import { HOST_PART, renderLifecycle } from './render-lifecycle.ts';

const page = new URL('../../../docs/lifecycle.md', import.meta.url);
const [, after = ''] = readFileSync(page, 'utf8').split(`${HOST_PART}\n`);
writeFileSync(page, `${renderLifecycle()}\n${HOST_PART}\n${after}`);
