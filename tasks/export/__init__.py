"""Labels in the formats that trainers and other tools read, with their images beside them."""
