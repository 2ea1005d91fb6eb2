export class FleetPage { constructor() {} close() {} }
