/** Writes docs/lifecycle.md. Run it after the transition table has changed; a test says when that was forgotten. */
import { writeFileSync } from 'node:fs';
import { renderLifecycle } from './render-lifecycle.ts';

writeFileSync(new URL('../../../docs/lifecycle.md', import.meta.url), renderLifecycle());
