import { spawnSync } from 'node:child_process';

/** The files below a folder that contain one of these texts. Files that vanish meanwhile are skipped. */
export function filesWith(folder: string, ...texts: string[]): string[] {
  const { status, stdout, stderr } = spawnSync(
    'grep',
    [
      '--recursive',
      '--files-with-matches',
      '--text',
      // Memory of guests is mostly zeros: as one line it would take as much memory of grep.
      '--null-data',
      '--no-messages',
      '--fixed-strings',
      ...texts.flatMap((text) => ['-e', text]),
      folder,
    ],
    {
      encoding: 'utf8',
      timeout: 60_000,
      maxBuffer: 16 * 1024 * 1024,
      env: { ...process.env, LC_ALL: 'C' },
    },
  );
  if (status === null) throw new Error(`grep did not end: ${stderr}`);
  return stdout.split('\n').filter((line) => line !== '');
}
