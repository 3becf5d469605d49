/** `debian`: Debian 12 with Python 3, git and curl, made from Debian's packages by mmdebstrap. */
import { open } from 'node:fs/promises';
import path from 'node:path';
import { ImageError, show } from '../image-error.ts';
import { runTool, toolEnv } from '../image-tool.ts';
import { EMPTY_RUN_CONFIG } from './builtin-image.ts';
import type { BuiltinContext, BuiltinImage, MadeImage } from './builtin-image.ts';
import { composeLayer, layerOf } from './compose-layer.ts';

const SUITE = 'bookworm';
const PACKAGES = ['ca-certificates', 'curl', 'git', 'python3'];
/** Raise it when what is made below changes. */
const RECIPE = 1;
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

export const debian: BuiltinImage = {
  name: 'debian',
  recipe: async () => await Promise.resolve(`debian-${RECIPE}:${SUITE}:${PACKAGES.join(',')}`),
  make,
};

async function make(context: BuiltinContext): Promise<MadeImage> {
  const archive = path.join(context.workDir, 'debian.tar');
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
        `--include=${PACKAGES.join(',')}`,
        SUITE,
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
    if (result.code !== 0) throw makeError(result.stderr);
  }
  context.report('done', STEPS.length, STEPS.length);
  return {
    layers: [
      await layerOf(archive, context.signal),
      await composeLayer(path.join(context.workDir, 'settings.tar'), [
        { path: 'etc/hostname', content: 'sandbox\n' },
        { path: 'etc/hosts', content: '127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n' },
        { path: 'etc/resolv.conf', content: '' },
        // No services are started by packages that are installed in a sandbox: nothing there supervises them.
        { path: 'usr/sbin/policy-rc.d', content: '#!/bin/sh\nexit 101\n', mode: 0o755 },
      ]),
    ],
    run: {
      ...EMPTY_RUN_CONFIG,
      cmd: ['/bin/bash'],
      env: { PATH: '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin', LANG: 'C.UTF-8' },
    },
  };
}

function makeError(stderr: string): ImageError {
  const said = show(stderr.trim().split('\n').slice(-6).join('\n'), 800);
  if (/failed to execute mmdebstrap|mmdebstrap: No such file/.test(stderr)) {
    return new ImageError(
      'tool-missing',
      'the built-in image debian needs mmdebstrap; install the package mmdebstrap',
    );
  }
  if (/no space left/i.test(stderr)) {
    return new ImageError(
      'no-space',
      "no space left on the image cache's disk while making the built-in image debian",
    );
  }
  if (
    /could not resolve|failed to fetch|unable to connect|could not connect|connection (?:failed|refused|timed out)/i.test(
      stderr,
    )
  ) {
    return new ImageError(
      'unreachable',
      `the built-in image debian needs Debian's package mirror, which apt cannot reach: ${said}`,
    );
  }
  return new ImageError('failed', `mmdebstrap could not make the built-in image debian: ${said}`);
}
