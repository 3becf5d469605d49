/** Writes docs/api.md. Run it after a schema or an operation has changed; a test says when that was forgotten. */
import { writeFileSync } from 'node:fs';
import { renderApiReference } from './render-api-reference.ts';

writeFileSync(new URL('../../../docs/api.md', import.meta.url), renderApiReference());
