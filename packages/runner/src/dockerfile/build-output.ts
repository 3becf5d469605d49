/** What buildah prints, line by line: into the build's log, and read for what it means. */

/** A longer line is stored in pieces. */
const LINE_MAX_BYTES = 64 * 1024;
const END_CHARS = 16 * 1024;
const STEP = /^(?:\[\d+\/\d+\] )?STEP \d+\/\d+: /;
/** Of `FROM`, and of `COPY --from=` or `RUN --mount=from=`. */
const MISSING_IMAGE =
  /(?:^|\s)"?([^\s"]+?)"?: image not known\s*$|from=([^\s,]+): no stage(?:, additional context)? or image found with that name/;

export class BuildOutput {
  readonly #log: (chunk: Buffer) => void;
  readonly #steps = new Set<string>();
  #rest = Buffer.alloc(0);
  /** Steps are repeated up to the one at which a base image was missing. */
  #isRepeating = false;
  #missing: string | undefined;
  #error = '';
  #end = '';

  /** @param log takes whole lines */
  constructor(log: (chunk: Buffer) => void) {
    this.#log = log;
  }

  /** The base image that buildah has not found. */
  get missingImage(): string | undefined {
    return this.#missing;
  }

  /** The last error, and the end of the output. */
  get error(): string {
    return this.#error;
  }
  get end(): string {
    return this.#end;
  }

  /** buildah is started again, after a base image was added. */
  repeat(): void {
    this.#isRepeating = true;
    this.#missing = undefined;
    this.#error = '';
    this.#end = '';
  }

  write(chunk: Buffer): void {
    this.#rest = Buffer.concat([this.#rest, chunk]);
    for (;;) {
      const at = this.#rest.indexOf(0x0a);
      const length = at >= 0 ? at + 1 : this.#rest.length > LINE_MAX_BYTES ? LINE_MAX_BYTES : 0;
      if (length === 0) return;
      const line = this.#rest.subarray(0, length);
      this.#rest = this.#rest.subarray(length);
      this.#line(line);
    }
  }

  /** The output has ended, perhaps without an end of its last line. */
  flush(): void {
    if (this.#rest.length > 0) this.#line(Buffer.concat([this.#rest, Buffer.from('\n')]));
    this.#rest = Buffer.alloc(0);
  }

  /** A line of our own. */
  note(text: string): void {
    this.#log(Buffer.from(`[releap] ${text}\n`));
  }

  #line(line: Buffer): void {
    const text = line.toString('utf8').trimEnd();
    const [, base, source] = text.startsWith('Error: ') ? (MISSING_IMAGE.exec(text) ?? []) : [];
    const missing = base ?? source;
    if (missing !== undefined) {
      this.#missing = missing;
      return;
    }
    if (text.startsWith('Error: ')) this.#error = text;
    this.#end = `${this.#end}${text}\n`.slice(-END_CHARS);
    if (STEP.test(text)) {
      if (!this.#steps.has(text)) this.#isRepeating = false;
      this.#steps.add(text);
    }
    if (!this.#isRepeating || text.startsWith('Error: ')) this.#log(line);
  }
}
