/** Root file systems made of Debian's packages by mmdebstrap. */
import { open } from 'node:fs/promises';
import path from 'node:path';
import { ImageError, show } from '../image-error.ts';
import { runTool, toolEnv } from '../image-tool.ts';
import type { LayerSource } from '../unpack-layer.ts';
import type { BuiltinContext } from './builtin-image.ts';
import { layerOf } from './compose-layer.ts';

const DEADLINE_MS = 20 * 60_000;
const TAR_MAX_BYTES = 4 * 1024 ** 3;

/** What mmdebstrap says in turn, after `I: `; each is one step of progress. */
const STEPS = [
  'running apt-get update',
  'downloading packages',
  'extracting archives',
  'installing essential packages',
  'installing remaining packages',
  'cleaning package lists',
  'creating tarball',
];

/**
 * A minimal system of a suite, with these packages.
 * @param name of the built-in image, for messages and files
 * @throws ImageError
 */
export async function debootstrap(
  name: string,
  suite: string,
  packages: readonly string[],
  context: BuiltinContext,
): Promise<LayerSource> {
  const archive = path.join(context.workDir, `${name}.tar`);
  context.report('starting mmdebstrap', 0, STEPS.length);
  {
    await using out = await open(archive, 'wx', 0o600);
    // In namespaces of its own, so that its mounts are never seen outside and all its processes end with it.
    const result = await runTool(
      'unshare',
      [
        '--mount',
        '--pid',
        '--fork',
        '--kill-child',
        '--mount-proc',
        '--',
        'mmdebstrap',
        '--mode=root',
        '--variant=minbase',
        '--format=tar',
        `--include=${packages.join(',')}`,
        suite,
        '-',
      ],
      {
        deadlineMs: DEADLINE_MS,
        signal: context.signal,
        env: toolEnv(context.workDir),
        stdoutFd: out.fd,
        fileMax: TAR_MAX_BYTES,
        onErrorLine: (line) => {
          const step = STEPS.findIndex((text) => line.startsWith(`I: ${text}`));
          if (step >= 0) context.report(line.slice(3), step, STEPS.length);
        },
      },
    );
    if (result.code !== 0) throw makeError(name, result.stderr);
  }
  context.report('done', STEPS.length, STEPS.length);
  return await layerOf(archive, context.signal);
}

function makeError(name: string, stderr: string): ImageError {
  const said = show(stderr.trim().split('\n').slice(-6).join('\n'), 800);
  if (/failed to execute mmdebstrap|mmdebstrap: No such file/.test(stderr)) {
    return new ImageError(
      'tool-missing',
      `the built-in image ${name} needs mmdebstrap; install the package mmdebstrap`,
    );
  }
  if (/no space left/i.test(stderr)) {
    return new ImageError(
      'no-space',
      `no space left on the image cache's disk while making the built-in image ${name}`,
    );
  }
  if (
    /could not resolve|failed to fetch|unable to connect|could not connect|connection (?:failed|refused|timed out)/i.test(
      stderr,
    )
  ) {
    return new ImageError(
      'unreachable',
      `the built-in image ${name} needs Debian's package mirror, which apt cannot reach: ${said}`,
    );
  }
  return new ImageError('failed', `mmdebstrap could not make the built-in image ${name}: ${said}`);
}
