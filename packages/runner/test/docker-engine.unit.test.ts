/** What prepares an image for Docker, and what a sandbox of it is told. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import {
  engineDockerfile,
  hasEngine,
  installFailure,
  packageManagerOf,
} from '../src/dockerfile/docker-engine.ts';
import { EMPTY_RUN_CONFIG } from '../src/image/builtin/builtin-image.ts';
import { DOCKER_LABEL, type ImageConfig } from '../src/image/image-config.ts';
import { checkConfig } from '../src/image/manifest.ts';
import { guestConfig } from '../src/reconcile/guest-config.ts';
import { SPEC } from './support/sandbox-spec.ts';

const RUNNING = { diskBytes: { scratch: 1, docker: 2 } } as Parameters<typeof guestConfig>[3];

function told(config: Partial<ImageConfig>, dockerData?: number): unknown {
  const image = { digest: '', path: '', config: { ...EMPTY_RUN_CONFIG, ...config } } as Parameters<
    typeof guestConfig
  >[2];
  const spec = { ...SPEC, ...(dockerData !== undefined && { docker_data_mib: dockerData }) };
  return guestConfig('00000000-0000-4000-8000-000000000000', spec, image, RUNNING, []).docker;
}

describe('an image that is prepared for Docker', () => {
  it('gets an engine from its own package manager, and keeps its user', () => {
    assert.equal(packageManagerOf('apk\n'), 'apk');
    assert.equal(packageManagerOf('apt-get\ndnf\n'), 'apt-get');
    const lines = engineDockerfile('worker:staff', 'apk').trimEnd().split('\n');
    assert.deepEqual(lines.slice(1), [
      'USER 0',
      'RUN apk add --no-cache docker',
      'USER worker:staff',
      `LABEL ${DOCKER_LABEL}=true`,
    ]);
  });

  it('that has one is only marked', () => {
    assert.ok(hasEngine('dockerd\napt-get\n'));
    assert.ok(!hasEngine('apt-get\n'));
    const [, ...steps] = engineDockerfile('', undefined).trimEnd().split('\n');
    assert.deepEqual(steps, [`LABEL ${DOCKER_LABEL}=true`]);
  });

  it('is refused with what is missing, and with what its package manager has said', () => {
    assert.throws(
      () => packageManagerOf('\n'),
      /^ImageError: docker: true needs an image with dockerd, or with one of apt-get, apk, dnf to install it with/,
    );
    assert.throws(
      () => engineDockerfile('a\nRUN evil', 'apk'),
      /cannot be used with an image whose user is "a\\nRUN evil"/,
    );
    const output =
      'Reading package lists...\nE: Unable to locate package docker.io\nsubprocess exited with status 100\nError: building at STEP "RUN x": exit status 100\n';
    assert.equal(
      installFailure('apt-get', output).message,
      'docker: true could not install Docker with apt-get: E: Unable to locate package docker.io',
    );
    const other = 'sh: apk: bad interpreter\nsubprocess exited with status 1\n';
    assert.match(installFailure('apk', other).message, /with apk: sh: apk: bad interpreter$/);
    assert.match(installFailure('apk', '').message, /no reason is given$/);
  });

  it('is known by its mark, and by nothing else', () => {
    const marked = (Labels: unknown): boolean | undefined => {
      const raw = JSON.stringify({ config: { Labels }, rootfs: { diff_ids: [] } });
      return checkConfig(Buffer.from(raw), 'image').run.docker;
    };
    assert.equal(marked({ [DOCKER_LABEL]: 'true' }), true);
    for (const labels of [
      { [DOCKER_LABEL]: 'false' },
      { [DOCKER_LABEL]: 1 },
      {},
      null,
      'true',
      [DOCKER_LABEL],
    ])
      assert.equal(marked(labels), undefined);
  });
});

describe('the agent of a sandbox', () => {
  it('starts the engine of an image with the mark, unless its entrypoint does', () => {
    assert.deepEqual(told({ docker: true }), { start: true });
    assert.deepEqual(told({ docker: true, cmd: ['sh', '-c', 'docker run box'] }, 512), { start: true });
    assert.deepEqual(told({ docker: true, entrypoint: ['dockerd-entrypoint.sh'] }), { start: false });
    assert.deepEqual(told({ docker: true, cmd: ['sh', '-c', 'dockerd & app'] }), { start: false });
  });

  it('only prepares the kernel for an engine when there is a data device and no mark', () => {
    assert.deepEqual(told({}, 512), { start: false });
    assert.equal(told({}), undefined);
  });
});
