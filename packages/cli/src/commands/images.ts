/** `rlp images ls` and `rlp images create NAME REF`. */
import type { ImageRecord } from '@releap/contract';
import { CliError } from '../cli-error.ts';
import { pages } from '../client/pages.ts';
import { pause } from '../client/pause.ts';
import { openService, type Service } from '../client/service.ts';
import { EXIT } from '../exit-codes.ts';
import { Spinner } from '../output/spinner.ts';
import { table } from '../output/table.ts';
import { parseDuration } from '../parse/values.ts';
import { type Context, print, printable, printJson } from '../terminal.ts';

export interface ImageCreateOptions {
  docker?: boolean;
  region?: string;
  /** False with `--no-wait`. */
  wait?: boolean;
  waitTimeout?: string;
}

const WAIT_MS = 30 * 60_000;
const POLL_MS = 1_000;

export async function listImages(context: Context): Promise<number> {
  const service = openService(context);
  const images: ImageRecord[] = [];
  for await (const image of pages(service.api.listImages, ({ images: found }) => found)) images.push(image);
  if (context.options.json) printJson(context, images);
  else
    print(
      context,
      table(
        ['NAME', 'STATUS', 'SOURCE', 'LAYERS', 'DIGEST'],
        images.map((image) => [
          image.name,
          image.status,
          sourceOf(image),
          String(image.layer_count ?? '-'),
          image.manifest_name?.slice(0, 19) ?? '-',
        ]),
      ),
    );
  return EXIT.ok;
}

export async function createImage(
  context: Context,
  name: string,
  ref: string,
  options: ImageCreateOptions,
): Promise<number> {
  const service = openService(context);
  const created = await service.api.createImage({
    body: { name, source: { type: 'registry', ref }, docker: options.docker, region: options.region },
  });
  if (options.wait !== false) {
    using spinner = new Spinner(context, `building ${name}: ${created.status}`);
    await waitForJob(context, service, created.job_id, options, (status) => {
      spinner.text = `building ${name}: ${status}`;
    });
  }
  const status = options.wait === false ? created.status : 'ready';
  if (context.options.json) printJson(context, { ...created, status });
  else print(context, created.image_id);
  return EXIT.ok;
}

async function waitForJob(
  context: Context,
  service: Service,
  id: string,
  options: ImageCreateOptions,
  onStatus: (status: string) => void,
): Promise<void> {
  const deadlineMs =
    options.waitTimeout === undefined ? WAIT_MS : parseDuration('--wait-timeout', options.waitTimeout);
  const until = performance.now() + deadlineMs;
  for (;;) {
    const job = await service.api.getJob({ params: { id } });
    onStatus(job.status);
    if (job.status === 'done') return;
    if (job.status === 'failed')
      throw new CliError(`the build failed: ${printable(job.error ?? 'no reason was given')}`);
    if (performance.now() > until)
      throw new CliError(
        `the build is still ${job.status} after ${Math.round(deadlineMs / 1000)} s; it continues in the background`,
      );
    await pause(POLL_MS, context.signal);
  }
}

function sourceOf(image: ImageRecord): string {
  const { type, ref, name } = image.source as { type: string; ref?: unknown; name?: unknown };
  if (typeof ref === 'string') return ref;
  return typeof name === 'string' ? `${type}:${name}` : type;
}
