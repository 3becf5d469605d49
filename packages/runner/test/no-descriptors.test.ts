import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { it } from 'node:test';

/** Uses up all descriptors, and then runs `script` with `module`. @returns its output */
function exhausted(module: string, script: string): string {
  const url = new URL(`../src/${module}`, import.meta.url).href;
  const whole = `
    const { openSync } = await import('node:fs');
    const module = await import(${JSON.stringify(url)});
    try { for (;;) openSync('/dev/null'); } catch {}
    const said = await (async () => { ${script} })().catch((error) => error.message);
    // An error event without a listener ends the process here.
    setTimeout(() => console.log(said), 10);`;
  const node = [process.execPath, '--input-type=module', '-e', whole];
  return execFileSync('prlimit', ['--nofile=64', ...node], { encoding: 'utf8', stdio: 'pipe' });
}

it('a tool that cannot be started because there are no descriptors costs one error, and never the runner', () => {
  assert.match(
    exhausted('process/run.ts', "await module.run('true', [])"),
    /^true could not be started: .*EMFILE/,
  );
  assert.match(
    exhausted('host/hostd.ts', "await new module.HostdProcess('memfd', ['4096']).line(60_000)"),
    /EMFILE/,
  );
});
