/**
 * The SDK where WebSockets cannot have headers, as in browsers and on serverless platforms: it sends the preview token of port 1
 * in the URL. It decides when it is loaded, by the environment: this is a process of its own.
 */
import { sdk, type Untyped } from '@releap/testing/daytona';

const [id = ''] = process.argv.slice(2);
const sandbox = await new sdk.Daytona().get(id);
const shell: Untyped = sandbox.process;

await shell.createSession('far');
const { cmdId } = await shell.executeSessionCommand('far', {
  command: 'echo out; echo err >&2',
  runAsync: true,
});
let log = '';
const hear = (chunk: string): void => {
  log += chunk;
};
await shell.getSessionCommandLogs('far', cmdId, hear, hear);
await shell.deleteSession('far');

let screen = '';
const pty = await shell.createPty({
  id: 'far',
  onData: (bytes: Uint8Array) => (screen += Buffer.from(bytes).toString()),
});
await pty.sendInput('echo $((6 * 7)); exit 3\n');
const { exitCode } = await pty.wait();

const { stdout } = await sandbox.codeInterpreter.runCode('print("code")');
await sandbox.fs.uploadFile(Buffer.from('content'), '/tmp/far');
const file = String(await sandbox.fs.downloadFile('/tmp/far'));
process.stdout.write(
  JSON.stringify({ log: log.split('\n').toSorted(), exitCode, has42: /\b42\b/.test(screen), stdout, file }),
);
