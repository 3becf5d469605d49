import assert from 'node:assert/strict';
import { test } from 'node:test';
import { explainFailure } from '../src/dockerfile/build-error.ts';
import { BuildOutput } from '../src/dockerfile/build-output.ts';
import { lineOf } from '../src/dockerfile/step-lines.ts';

const LIMITS = {
  parallel: 1,
  cpus: 2,
  memMib: 2048,
  diskMib: 10 * 1024,
  timeMs: 1,
  cacheMib: 1,
  processes: 4096,
};
const DOCKERFILE = `# a comment
FROM busybox AS base
RUN true
run  apt-get update && \\
    apt-get install -y nothing
COPY x /y
COPY --from=base x /z
RUN <<EOF
false
EOF
`;

const explained = (error: string, more: Partial<Parameters<typeof explainFailure>[0]> = {}): string =>
  explainFailure({ error, output: '', dockerfile: DOCKERFILE, oomKills: 0, forksRefused: 0, ...more }, LIMITS)
    .message;

test('a step is found in its Dockerfile by its text', () => {
  assert.equal(lineOf(DOCKERFILE, 'RUN true'), 3);
  assert.equal(lineOf(DOCKERFILE, 'RUN apt-get update &&     apt-get install -y nothing'), 4);
  assert.equal(lineOf(DOCKERFILE, 'RUN <<EOF (false)'), 8);
  assert.equal(lineOf(DOCKERFILE, 'RUN true && false'), undefined);
  assert.equal(lineOf(DOCKERFILE, 'RUN something else'), undefined);
});

test('a failed build is explained by its step, its line and what it met', () => {
  const step = (text: string, reason: string): string =>
    `Error: building at STEP ${JSON.stringify(text)}: ${reason}`;
  assert.equal(
    explained(
      step('RUN apt-get update &&     apt-get install -y nothing', 'while running runtime: exit status 100'),
    ),
    'RUN apt-get update && apt-get install -y nothing (line 4) exited with status 100',
  );
  assert.equal(
    explained(
      step(
        'COPY x /y',
        'checking on sources under "/var/lib/docker/context": copier: stat: "/x": no such file or directory',
      ),
    ),
    'COPY x /y (line 6): no such file in the context',
  );
  assert.match(
    explained(step('COPY --from=base x /z', 'copier: stat: "/x": no such file or directory')),
    /^COPY --from=base x \/z \(line 7\): copier/,
  );
  assert.equal(
    explained(step('RUN true', 'write /var/lib/docker/storage/x: no space left on device')),
    'the build ran out of its 10 GiB disk',
  );
  assert.equal(
    explained(step('RUN true', 'exit status 137'), { oomKills: 1 }),
    'the build ran out of its 2 GiB of memory: RUN true (line 3)',
  );
  assert.equal(
    explained(step('RUN true', 'exit status 2'), { forksRefused: 9 }),
    'the build had more than 4096 processes at a time: RUN true (line 3)',
  );
  assert.equal(
    explained(
      step('RUNN ', 'Build error: Unknown instruction: "RUNN" &imagebuilder.Step{Env:[]string{"A=b"}}'),
    ),
    'the Dockerfile has an unknown instruction: RUNN',
  );
  assert.equal(
    explained('Error: dockerfile parse error line 3: unknown instruction: RUNN'),
    'dockerfile parse error line 3: unknown instruction: RUNN',
  );
});

test('what a build prints reaches an explanation as one line without control characters', () => {
  assert.doesNotMatch(explained('Error: \u001b[31mred\u0007\nsecond'), /\p{Cc}/u);
  assert.ok(explained(`Error: ${'x'.repeat(100_000)}`).length <= 600);
});

test('a build that is repeated for a base image logs each step once, and not that the image was missing', () => {
  const logged: string[] = [];
  const output = new BuildOutput((line) => logged.push(line.toString()));
  output.write(
    Buffer.from(
      'STEP 1/2: FROM localhost:5000/a\nError: creating build container: localhost:5000/a: image not kn',
    ),
  );
  output.write(Buffer.from('own\n'));
  output.flush();
  assert.equal(output.missingImage, 'localhost:5000/a');
  output.repeat();
  output.write(Buffer.from('STEP 1/2: FROM localhost:5000/a\n--> Using cache 12\nSTEP 2/2: RUN true\nout'));
  output.flush();
  assert.equal(output.missingImage, undefined);
  assert.deepEqual(logged, ['STEP 1/2: FROM localhost:5000/a\n', 'STEP 2/2: RUN true\n', 'out\n']);
});

test('images of COPY --from and of mounts are missing as those of FROM are', () => {
  for (const error of [
    'Error: COPY --from=localhost:5000/b: no stage or image found with that name',
    'Error: building at STEP "RUN --mount=type=bind,from=localhost:5000/b,target=/b true": --mount=type=bind,from=localhost:5000/b,target=/b from=localhost:5000/b: no stage, additional context or image found with that name',
  ]) {
    const output = new BuildOutput(() => undefined);
    output.write(Buffer.from(`${error}\n`));
    assert.equal(output.missingImage, 'localhost:5000/b');
  }
});

test('a line without an end takes a bounded amount of memory', () => {
  let bytes = 0;
  const output = new BuildOutput((line) => (bytes += line.length));
  for (let i = 0; i < 64; i += 1) output.write(Buffer.alloc(32 * 1024, 'x'));
  assert.ok(bytes >= 62 * 32 * 1024);
});
