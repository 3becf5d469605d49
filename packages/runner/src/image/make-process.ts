/**
 * The process that turns layers into a root image: `node make-process.ts`, job as one line of JSON on standard input,
 * progress and outcome as lines of JSON on standard output.
 *
 * A process of its own, because the content is hostile (memory and time have a bound that the runner does not share) and
 * because unpacking and hashing would hold up the runner's event loop. It ends when its standard input does, so that a
 * runner that was killed leaves nothing working.
 */
import { setPriority } from 'node:os';
import { createInterface } from 'node:readline';
import { ImageError, toImageError } from './image-error.ts';
import type { MakeJob, MakeMessage } from './make-root-image.ts';
import { mergeLayers } from './oci-flatten.ts';
import { writeRootImage } from './root-image.ts';

const PROGRESS_EVERY_MS = 250;

function say(message: MakeMessage): void {
  process.stdout.write(`${JSON.stringify(message)}\n`);
}

async function make(job: MakeJob): Promise<void> {
  let last = 0;
  await using merged = await mergeLayers(job.layers, {
    workDir: job.workDir,
    limits: job.limits,
    onLayer: (done, total) => say({ type: 'progress', phase: 'unpack', done, total }),
  });
  const sizeBytes = await writeRootImage(merged, job.target, {
    onProgress: (done, total) => {
      if (performance.now() - last < PROGRESS_EVERY_MS) return;
      last = performance.now();
      say({ type: 'progress', phase: 'write', done, total });
    },
  });
  say({ type: 'done', sizeBytes, entries: merged.entries });
}

setPriority(10);
const input = createInterface({ input: process.stdin });
input.once('line', (line) => {
  make(JSON.parse(line) as MakeJob)
    .catch((error: unknown) => {
      const { code, message } =
        error instanceof ImageError ? error : toImageError(error, 'making the root image');
      say({ type: 'error', code, message });
    })
    .finally(() => {
      input.close();
      process.stdin.destroy();
    });
});
process.stdin.once('end', () => process.exit(1));
