/** A request that is not sent on. */
export class RefusedRequest extends Error {
  override name = 'RefusedRequest';
  readonly status: number;

  constructor(status: number, message: string) {
    super(message);
    this.status = status;
  }
}
